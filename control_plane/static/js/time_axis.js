// The ticks of an axis of seconds: times that clocks know, each with a text of its own.

/** What ticks may be apart. */
export const TIME_STEPS_S = [
  1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 432000, 864000,
];

/** Seconds since the start as a tick: 40 s, 1:20, 1 h 30, 2 d 6 h. */
export function timeTick(x) {
  const minutes = Math.floor(x / 60);
  const hours = Math.floor(x / 3600);
  const twoDigits = (value) => String(value).padStart(2, "0");
  if (x < 60) return `${x} s`;
  if (x < 3600) return `${minutes}:${twoDigits(x % 60)}`;
  if (x % 60) return `${hours}:${twoDigits(minutes % 60)}:${twoDigits(x % 60)}`;
  if (hours < 48) return minutes % 60 ? `${hours} h ${twoDigits(minutes % 60)}` : `${hours} h`;
  const hour = hours % 24;
  return `${Math.floor(hours / 24)} d${hour ? ` ${hour} h` : ""}${minutes % 60 ? ` ${minutes % 60} min` : ""}`;
}
