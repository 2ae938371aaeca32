// Live plots over uPlot: history from /metrics, then one point at a time from the stream.

import { get } from "./api.js";
import { el } from "./dom.js";
import { colour } from "./theme.js";
import { TIME_STEPS_S, timeTick } from "./time_axis.js";

const PLOTS = [
  { title: "Loss", names: ["loss"], colours: ["accent"], x: "step", log: true },
  { title: "Accuracy", names: ["accuracy"], colours: ["good"], x: "step" },
  { title: "Acceptance length", names: ["simulated_acceptance_length", "acceptance_length"],
    labels: ["in training, simulated", "held out, measured"], colours: ["accent", "warm"], x: "step" },
  { title: "Ktok/s by stage", names: ["generated_tokens_per_s", "target_tokens_per_s", "trained_tokens_per_s"],
    labels: ["generated", "target", "trained"], colours: ["warm", "accent", "good"], x: "seconds", scale: 1e-3 },
  { title: "Queue depth", names: ["queue_depth.completions", "queue_depth.batches", "queue_depth.hidden_states"],
    labels: ["completions", "batches", "hidden_states"], colours: ["warm", "good", "accent"], x: "seconds" },
];
const HEIGHT = 170;
const MOST_POINTS = 4000;
// What ticks of an axis of steps may be apart.
const STEPS = [1, 2, 5].flatMap((digit) => [0, 1, 2, 3, 4, 5, 6].map((power) => digit * 10 ** power)).sort((a, b) => a - b);
const SPARSE = new Set(["acceptance_length"]);

export async function plots(runId) {
  const node = el("div", { class: "plots" });
  const values = new Map();
  const charts = PLOTS.map((plot) => makeChart(plot, values, node));
  const names = PLOTS.flatMap((plot) => plot.names).join(",");
  let dirty = new Set(PLOTS);
  await load();
  const draw = () => {
    for (const chart of charts) if (dirty.has(chart.plot)) chart.draw();
    dirty = new Set();
  };
  const timer = setInterval(draw, 500);
  const all = () => { dirty = new Set(PLOTS); };
  const rebuild = () => { for (const chart of charts) chart.rebuild(); all(); draw(); };
  const resized = new ResizeObserver(() => { for (const chart of charts) chart.resize(); });
  resized.observe(node);
  addEventListener("themechange", rebuild);
  requestAnimationFrame(draw);

  /** The stored history; asked again after a gap, since points are not sent twice. */
  async function load() {
    const history = await get(`/v1/runs/${encodeURIComponent(runId)}/metrics?names=${names}&points=800`);
    for (const series of history.items) {
      values.set(series.name, new Map(series.points.map((point) => [point.step, point.value])));
    }
    dirty = new Set(PLOTS);
  }
  function add(point) {
    if (!values.has(point.name)) values.set(point.name, new Map());
    const series = values.get(point.name);
    series.set(point.step, point.value);
    if (series.size > MOST_POINTS) thin(series);
    const plot = PLOTS.find((one) => one.names.includes(point.name));
    if (plot) dirty.add(plot);
  }
  function close() {
    clearInterval(timer);
    resized.disconnect();
    removeEventListener("themechange", rebuild);
    for (const chart of charts) chart.destroy();
  }
  return { node, add, load, close };
}

/** Forget every second point of the older half. */
function thin(series) {
  const steps = [...series.keys()].sort((a, b) => a - b);
  for (let i = 0; i < steps.length / 2; i += 2) series.delete(steps[i]);
}

function makeChart(plot, values, parent) {
  const nothing = el("p", { class: "empty" }, "no data yet");
  const holder = el("div", { class: "holder" }, nothing);
  const latest = el("span", { class: "latest" });
  const legend = plot.names.length === 1 ? null : el("ul", { class: "legend" },
    ...plot.names.map((name, i) => el("li", { class: `key-${plot.colours[i]}` }, plot.labels[i])));
  parent.append(el("figure", { class: "plot" },
    el("figcaption", {}, el("span", {}, plot.title), latest, legend), holder));
  let chart = null;

  function options() {
    const axis = { stroke: colour("muted"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false },
      font: "11px system-ui, sans-serif", size: 34, gap: 4 };
    return {
      width: Math.max(120, holder.clientWidth), height: HEIGHT, legend: { show: false },
      cursor: { y: false, points: { size: 6 } }, scales: { x: { time: false }, y: plot.log ? { distr: 3, log: 10, range: logRange } : {} },
      padding: [8, 12, 0, 0],
      axes: [{ ...axis, size: 24, ...(plot.x === "seconds" ? { incrs: TIME_STEPS_S, space: 56, values: (_, ticks) => ticks.map(timeTick) }
        : { incrs: STEPS }) },
        { ...axis, size: 44, ...(plot.log ? { splits: roundSplits, filter: (_, ticks) => ticks } : {}) }],
      series: [{}, ...plot.names.map((name, i) => ({ label: name, stroke: colour(plot.colours[i]), width: 1.6,
        spanGaps: true, points: { show: SPARSE.has(name), size: 8, fill: colour(plot.colours[i]) } }))],
    };
  }
  /** What can be drawn: nothing where there is no value, or none that a logarithm has. */
  function shown(value) {
    if (value === undefined || (plot.log && value <= 0)) return null;
    return value * (plot.scale ?? 1);
  }
  function data() {
    const series = plot.names.map((name) => values.get(name) ?? new Map());
    const xs = [...new Set(series.flatMap((one) => [...one.keys()]))].sort((a, b) => a - b);
    return [xs, ...series.map((one) => xs.map((x) => shown(one.get(x))))];
  }
  function draw() {
    const now = data();
    const isEmpty = !now.slice(1).some((one) => one.some((value) => value !== null));
    nothing.hidden = !isEmpty;
    if (isEmpty) return clear();
    if (chart) chart.setData(now);
    else chart = new uPlot(options(), now, holder);
    const first = now[1].findLast((value) => value !== null);
    latest.textContent = plot.names.length === 1 && first !== undefined ? first.toFixed(3) : "";
  }
  /** Without a value there are no axes either: their figures would be invented. */
  function clear() {
    chart?.destroy();
    chart = null;
    latest.textContent = "";
  }
  return {
    plot, draw,
    resize() { if (chart) chart.setSize({ width: Math.max(120, holder.clientWidth), height: HEIGHT }); },
    rebuild: clear,
    destroy: clear,
  };
}

/** A little room around the values; some scale for an unset range, since 0 has no logarithm. */
function logRange(_, low, high) {
  return low > 0 ? [low * 0.9, high * 1.1] : [1, 10];
}

/** Round values of every power of ten within a logarithmic scale, closer where it is narrow. */
function roundSplits(_, __, low, high) {
  const found = [];
  const digits = high / low > 5 ? [1, 2, 5] : [1, 1.5, 2, 3, 5, 7];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
    for (const digit of digits) {
      const value = digit * 10 ** power;
      if (value >= low && value <= high) found.push(value);
    }
  }
  return found.length > 1 ? found : evenSplits(low, high);
}

/** Three or more round values of a scale too narrow for those of a power of ten. */
function evenSplits(low, high) {
  const power = 10 ** Math.floor(Math.log10((high - low) / 3));
  const step = [5, 2, 1].map((digit) => digit * power).find((one) => one <= (high - low) / 3);
  const found = [];
  for (let i = Math.ceil(low / step); i * step <= high; i += 1) found.push(Number((i * step).toPrecision(6)));
  return found;
}
