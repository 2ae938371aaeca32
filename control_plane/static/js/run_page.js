// One run: what it does now, how fast, what limits it, and the buttons that its state allows.

import { asCurl, get, post } from "./api.js";
import { copyText, dialog, el, oneAtATime, replace, setText, toast } from "./dom.js";
import { details } from "./details.js";
import { exportPanel } from "./export_panel.js";
import { count, dateTime, decimal, duration, epochOf, toldReason } from "./format.js";
import { logTail } from "./log_tail.js";
import { pipeline } from "./pipeline.js";
import { plots } from "./plots.js";
import { statePill } from "./runs_list.js";
import { RunStream } from "./stream.js";
import { workersTable } from "./workers_table.js";

export async function showRun(content, runId, setLinkState) {
  const own = `/v1/runs/${encodeURIComponent(runId)}`;
  const first = await get(own);
  const head = header(own);
  const tiles = figures();
  const strip = pipeline();
  const workers = workersTable();
  const log = logTail();
  const exports = exportPanel(runId);
  const more = details(runId);
  const charts = await plots(runId);
  const bottleneck = el("p", { class: "bottleneck", "aria-live": "polite" });
  replace(content, head.node, el("section", { class: "panel" }, tiles.node, strip.node, bottleneck),
    charts.node, workers.node, more.node, exports.node, log.node);
  document.title = `${first.name} \u00b7 dflash-mesh`;

  function update(run) {
    head.update(run);
    tiles.update(run);
    strip.update(run);
    more.setRun(run);
    setText(bottleneck, run.bottleneck ?? "");
  }
  function showEvaluation(view) {
    more.showEvaluation(view);
    const { acceptance_length: value, checkpoint_step: step } = view.result ?? {};
    if (value !== undefined && step !== undefined) charts.add({ name: "acceptance_length", step, value });
  }
  async function fill() {
    try {
      await Promise.all([charts.load(), more.load(), exports.load()]);
    } catch (error) {
      toast(error.message, true);
    }
  }
  update(first);
  let gap = false;
  const stream = new RunStream(runId, {
    run: update, workers: workers.update, point: charts.add, log: log.add,
    checkpoint: more.showCheckpoint, evaluation: showEvaluation, export: exports.update,
    report: (event) => more.showReport(event.report),
  }, (state, silentS) => {
    document.body.classList.toggle("stale", state !== "live");
    if (state === "live" && gap) fill();
    gap = state !== "live";
    if (state === "live") setLinkState("live", "live");
    else if (state === "away") setLinkState("away", `control plane away for ${duration(silentS)}; figures are old`);
    else setLinkState("stale", `no events for ${duration(silentS)}; figures are old`);
  });
  await fill();
  return () => {
    document.body.classList.remove("stale");
    stream.close();
    charts.close();
    workers.close();
  };
}

function header(own) {
  const title = el("h1", {});
  const id = el("code", {});
  const state = el("span", { id: "run-state", role: "status", "aria-live": "polite" });
  const stage = el("span", { class: "stage-name" });
  const reason = el("p", { class: "reason" });
  const buttons = el("div", { class: "actions", role: "group", "aria-label": "Run" });
  const node = el("section", { class: "run-head" },
    el("div", { class: "row" }, title, state, stage, el("span", { class: "grow" }), buttons),
    el("div", { class: "row sub" }, id), reason);
  let shownActions = null;

  const act = oneAtATime(async (action, body) => {
    try {
      update(await post(`${own}/${action}`, body));
    } catch (error) {
      toast(error.message, true);
    }
  });
  function confirmStop() {
    const run = (mode, text, kind) => el("button", { type: "button", class: kind, "data-confirm": mode,
      onclick: (event) => { event.target.closest("dialog").close(); act("stop", { mode }); } }, text);
    dialog("Stop this run?", [
      el("p", {}, "Stopping drains what is in flight and saves a checkpoint; the run can be resumed."),
    ], [run("drain", "Drain and stop", "primary"), run("now", "Stop now", "danger")]);
  }
  function update(run) {
    setText(title, run.name);
    setText(id, `${run.id}   started ${dateTime(run.started_at ?? run.created_at)}` + (run.ended_at ? `   ended ${dateTime(run.ended_at)}` : ""));
    if (state.textContent !== run.state) replace(state, statePill(run.state));
    setText(stage, run.stage ?? "");
    setText(reason, toldReason(run));
    const actions = run.allowed_actions.filter((action) => ["pause", "resume", "stop"].includes(action));
    if (actions.join() === shownActions) return;
    shownActions = actions.join();
    const labels = { pause: "Pause", resume: "Resume", stop: "Stop" };
    replace(buttons, ...actions.map((action) => el("button", { type: "button", "data-action": action,
      class: action === "stop" ? "danger" : "", onclick: action === "stop" ? confirmStop : () => act(action) }, labels[action])),
      actions.includes("stop") ? el("button", { type: "button", class: "quiet",
        onclick: () => copyText(asCurl("POST", `${own}/stop`)) }, "Stop as curl") : null);
  }
  return { node, update };
}

function figures() {
  const tile = (name, label) => {
    const value = el("div", { class: "value", "data-figure": name }, "\u2013");
    const note = el("small", {});
    return { box: el("div", { class: "tile" }, el("span", { class: "label" }, label), value, note), value, note };
  };
  const steps = tile("step", "Step");
  const left = tile("eta", "Time left");
  const samples = tile("samples", "Samples");
  const loss = tile("loss", "Loss");
  const accuracy = tile("accuracy", "Accuracy");
  const acceptance = tile("acceptance", "Acceptance length");
  const bar = el("progress", { max: 1, value: 0, "aria-label": "Training progress" });
  steps.box.append(bar);
  const all = [steps, left, samples, loss, accuracy, acceptance];
  const node = el("div", { class: "tiles" }, ...all.map((one) => one.box));

  function update(run) {
    const p = run.progress;
    setText(steps.value, p.steps_total ? `${count(p.step)} / ${count(p.steps_total)}` : "\u2013");
    setText(steps.note, p.steps_total ? `epoch ${epochOf(p.epoch, p.epochs_total)}` : "");
    bar.value = p.steps_total ? p.step / p.steps_total : 0;
    setText(left.value, run.state === "running" && run.eta_s !== null ? duration(run.eta_s) : "\u2013");
    setText(samples.value, count(p.samples_accepted));
    setText(samples.note, `${count(p.completions_done)} of ${count(p.completions_total)} completions` +
      (p.completions_failed ? `, ${count(p.completions_failed)} failed` : "") +
      (p.samples_quarantined ? `, ${count(p.samples_quarantined)} quarantined` : ""));
    setText(loss.value, decimal(run.loss));
    setText(accuracy.value, decimal(run.accuracy));
    setText(acceptance.value, decimal(run.acceptance_length, 2));
    setText(acceptance.note, run.acceptance_length === null ? "not measured yet" : "measured on held-out prompts");
  }
  return { node, update };
}
