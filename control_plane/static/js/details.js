// Below the figures: the data-quality report, checkpoints and evaluations.

import { asCurl, get, list, post } from "./api.js";
import { copyText, el, oneAtATime, problemBox, toast } from "./dom.js";
import { bytes, count, dateTime, decimal, epochOf, percent } from "./format.js";
import { patch } from "./patch.js";

export function details(runId) {
  const own = `/v1/runs/${encodeURIComponent(runId)}`;
  const quality = el("div", {}, el("p", { class: "empty" }, "Nothing has been judged yet."));
  const checkpointRows = el("tbody", {});
  const evaluationRows = el("tbody", {});
  const checkpoints = new Map();
  const evaluations = new Map();
  let report = null;
  let run = null;

  function showReport(now) {
    report = now;
    if (report) patch(quality, [reportBox(report, run)]);
  }
  /** The run's reason decides what the report repeats, its epochs what a checkpoint is of. */
  function setRun(now) {
    const before = run;
    run = now;
    if (before?.reason !== now.reason) showReport(report);
    if (before?.progress.epochs_total !== now.progress.epochs_total) showCheckpoints();
  }
  function showCheckpoint(view) {
    checkpoints.set(view.step, view);
    showCheckpoints();
  }
  function showCheckpoints() {
    const rows = [...checkpoints.values()].sort((a, b) => b.step - a.step).map((one) => el("tr", { "data-key": one.step },
      el("th", { scope: "row", class: "number" }, count(one.step)), el("td", { class: "number" }, epochOf(one.epoch, run?.progress.epochs_total)),
      el("td", { class: "number" }, decimal(one.loss)), el("td", { class: "number" }, decimal(one.acceptance_length, 2)),
      el("td", { class: "number" }, bytes(one.num_bytes)), el("td", {}, dateTime(one.created_at))));
    patch(checkpointRows, rows);
  }
  function showEvaluation(view) {
    evaluations.set(view.id, view);
    const newest = [...evaluations.values()].sort((a, b) => b.created_at - a.created_at);
    patch(evaluationRows, newest.map(evaluationRow));
  }
  async function load() {
    showReport((await get(`${own}/report`)).report);
    for (const view of await list(`${own}/checkpoints`)) showCheckpoint(view);
    for (const view of await list(`${own}/evaluations`)) showEvaluation(view);
  }
  const evaluate = oneAtATime(async () => {
    try {
      showEvaluation(await post(`${own}/evaluations`, {}));
    } catch (error) {
      toast(error.message, true);
    }
  });
  const table = (head, body) => el("div", { class: "scroll" }, el("table", {},
    el("thead", {}, el("tr", {}, ...head.map((title) => el("th", { scope: "col" }, title)))), body));
  const node = el("div", { class: "columns" },
    el("section", { class: "panel" }, el("h2", {}, "Data quality"), quality),
    el("section", { class: "panel" },
      el("div", { class: "row" }, el("h2", { class: "grow" }, "Evaluations"),
        el("div", { class: "actions" }, el("button", { type: "button", onclick: evaluate }, "Evaluate newest"),
          el("button", { type: "button", class: "quiet", onclick: () => copyText(asCurl("POST", `${own}/evaluations`, {})) }, "Copy as curl"))),
      table(["Step", "Acceptance", "On the baselines' prompts", "Untrained", "Prompt lookup", "Greedy", "Target score", "State"], evaluationRows),
      el("h2", {}, "Checkpoints"), table(["Step", "Epoch", "Loss", "Acceptance", "Size", "Saved"], checkpointRows)));
  return { node, load, setRun, showReport, showCheckpoint, showEvaluation };
}

function evaluationRow(view) {
  const result = view.result;
  const score = result?.target_score;
  return el("tr", { "data-key": view.id, "data-evaluation": view.state },
    el("th", { scope: "row", class: "number" }, view.checkpoint_step ?? "newest"),
    el("td", { class: "number strong" }, decimal(result?.acceptance_length, 2), onPrompts(result?.num_prompts)),
    el("td", { class: "number" }, decimal(result?.acceptance_length_on_baseline_prompts, 2), onPrompts(result?.baselines_num_prompts)),
    el("td", { class: "number" }, decimal(result?.baselines?.untrained, 2)),
    el("td", { class: "number" }, decimal(result?.baselines?.prompt_lookup, 2)),
    el("td", {}, result ? (result.equal_to_greedy ? "equal" : `${result.num_unequal} differ`) : ""),
    el("td", { class: "number" }, score ? `${score.correct} / ${score.total}` : ""),
    el("td", {}, el("span", { class: `pill ${view.state}` }, view.state), view.problem ? el("small", {}, view.problem) : null));
}

/** Lengths compare only on the same prompts, so each says on how many it was measured. */
function onPrompts(num) {
  return num ? el("small", {}, ` on ${count(num)} prompts`) : null;
}

function reportBox(report, run) {
  const toldAbove = run?.reason && report.block_reason && run.reason.includes(report.block_reason);
  const found = report.reasons.filter((reason) => reason.count > 0);
  const same = report.most_frequent_response;
  const most = Math.max(1, ...report.mask_sums.histogram.map((bin) => bin.count));
  return el("div", { "data-key": "report" },
    report.blocked && !toldAbove ? problemBox({ title: "Blocked", message: `${report.block_reason}. ${report.cause ?? ""}` }) : null,
    el("p", {}, `${count(report.num_accepted)} of ${count(report.num_seen)} accepted; `,
      `rejected ${percent(report.rejected_share)}, limit ${percent(report.rejected_limit)}.`),
    found.length ? el("div", {}, ...found.map(reasonBox)) : el("p", { class: "good-text" }, "No gate has rejected anything."),
    same.count > 1 ? el("p", {}, `Most frequent answer: ${percent(same.share)} (limit ${percent(same.limit)}) `, el("code", {}, same.text)) : null,
    el("h3", {}, "Supervised tokens of a sample"),
    el("div", { class: "histogram", role: "img", "aria-label": "Histogram of supervised tokens" },
      ...report.mask_sums.histogram.filter((bin) => bin.count).map((bin) => {
        const bar = el("span", { class: "fill" });
        bar.style.width = `${(100 * bin.count) / most}%`;
        return el("div", { class: "bin" }, el("span", { class: "number" }, `${bin.from}\u2013${bin.to - 1}`),
          el("span", { class: "track" }, bar), el("span", { class: "number" }, count(bin.count)));
      })));
}

function reasonBox(reason) {
  return el("details", { class: reason.share > reason.limit ? "problem" : "" },
    el("summary", {}, `${reason.reason.replaceAll("_", " ")}: ${count(reason.count)} (${percent(reason.share)}, limit ${percent(reason.limit)})`),
    el("p", {}, reason.advice),
    ...(reason.examples || []).map(exampleBox));
}

/** Where it is, why it was rejected, and how its answer begins. */
function exampleBox(example) {
  return el("div", { class: "example" },
    el("p", {}, `${example.source ?? `Completion ${example.seq}`}: ${example.detail}`),
    example.text === null ? null : el("pre", {}, example.text));
}
