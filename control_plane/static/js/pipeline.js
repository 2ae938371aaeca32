// The mesh as a strip: a stage with its Ktok/s, then the link to the next with its fill.

import { el, setText } from "./dom.js";
import { bytes, ktok } from "./format.js";

const STAGES = [
  ["generator", "generated_tokens_per_s", "generated"],
  ["batcher", null, "gated, packed"],
  ["target_forward", "target_tokens_per_s", "target forward"],
  ["drafter_trainer", "trained_tokens_per_s", "trained"],
];
const LINKS = ["completions", "batches", "hidden_states"];

// Requests in flight of those that are worth it just now, then each server: running + waiting.
function serverNotes(queues) {
  const requests = queues.filter((queue) => queue.name === "requests")
    .map((queue) => `${queue.depth} / ${queue.capacity} requests`);
  const servers = queues.filter((queue) => /^server_\d+$/.test(queue.name))
    .map((queue) => `${queue.name.replace("_", " ")}: ${queue.capacity} + ${queue.depth - queue.capacity}`);
  return [...requests, ...servers];
}

export function pipeline() {
  const stages = {};
  const links = {};
  const parts = [];
  STAGES.forEach(([role, rate, what], i) => {
    const figure = el("span", { class: "figure" }, rate ? "0" : "");
    const unit = el("span", { class: "unit" }, rate ? "Ktok/s" : "");
    const note = el("small", {}, what);
    const box = el("div", { class: "stage", "data-role": role }, el("span", { class: "role" }, role),
      el("div", {}, figure, unit), note);
    stages[role] = { box, figure, rate, note, what };
    parts.push(box);
    if (i < LINKS.length) {
      const name = LINKS[i];
      const fill = el("div", { class: "fill" });
      const depth = el("span", { class: "depth" }, "\u2013");
      const size = el("small", {}, "");
      const meter = el("div", { class: "meter", role: "meter", "aria-label": `${name} queue`,
        "aria-valuemin": 0, "aria-valuemax": 1, "aria-valuenow": 0 }, fill);
      parts.push(el("div", { class: "link", "data-queue": name }, el("span", { class: "name" }, name), meter,
        el("div", {}, depth, size)));
      links[name] = { fill, depth, size, meter };
    }
  });
  const node = el("div", { class: "pipeline" }, ...parts);

  function update(run) {
    for (const { figure, rate } of Object.values(stages)) {
      if (rate) setText(figure, ktok(run.throughput[rate]));
    }
    stages.batcher.figure.textContent = run.progress.samples_accepted.toLocaleString("en-US");
    const seen = new Map(run.queues.map((queue) => [queue.name, queue]));
    for (const [name, link] of Object.entries(links)) {
      const queue = seen.get(name);
      const share = queue && queue.capacity ? Math.min(1, queue.depth / queue.capacity) : 0;
      link.fill.style.width = `${share * 100}%`;
      link.meter.setAttribute("aria-valuenow", queue ? queue.depth : 0);
      link.meter.setAttribute("aria-valuemax", queue ? queue.capacity : 1);
      setText(link.depth, queue ? `${queue.depth} / ${queue.capacity}` : "\u2013");
      setText(link.size, queue && queue.bytes ? bytes(queue.bytes) : "");
    }
    const { note, what } = stages.generator;
    setText(note, [what, ...serverNotes(run.queues)].join(" \u00b7 "));
    const slow = run.bottleneck?.match(/waits for (\w+)/)?.[1];
    for (const [role, stage] of Object.entries(stages)) stage.box.classList.toggle("limit", role === slow);
  }
  return { node, update };
}
