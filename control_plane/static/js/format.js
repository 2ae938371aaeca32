// Figures for people.

export function ktok(tokensPerSecond) {
  if (!tokensPerSecond) return "0";
  const k = tokensPerSecond / 1000;
  return k >= 100 ? k.toFixed(0) : k >= 10 ? k.toFixed(1) : k.toFixed(2);
}

export function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let i = 0;
  while (value >= 1000 && i < units.length - 1) { value /= 1000; i += 1; }
  return `${i === 0 ? value : value.toFixed(value >= 100 ? 0 : value >= 10 ? 1 : 2)} ${units[i]}`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) return `${minutes} min ${String(whole % 60).padStart(2, "0")} s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${String(minutes % 60).padStart(2, "0")} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

export function clock(seconds) {
  return seconds ? new Date(seconds * 1000).toLocaleTimeString([], { hour12: false }) : "";
}

export function dateTime(seconds) {
  return seconds ? new Date(seconds * 1000).toLocaleString([], { hour12: false }) : "";
}

/** "epoch 3 of 4": an epoch of the API, which counts from 0, as people count. */
export function epochOf(epoch, total) {
  return total ? `${epoch + 1} of ${total}` : `${epoch + 1}`;
}

/** The reason of a run's state, where it says more than the state itself. */
export function toldReason(run) {
  return run.reason && run.reason !== run.state ? run.reason : null;
}

export function count(value) {
  return value === null || value === undefined ? "" : value.toLocaleString("en-US");
}

export function decimal(value, digits = 3) {
  return value === null || value === undefined ? "\u2013" : value.toFixed(digits);
}

export function percent(share) {
  return `${(share * 100).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;
}
