// Exporting: where to, which checkpoints, progress, and what came of it.

import { asCurl, list, post, remove } from "./api.js";
import { copyText, el, oneAtATime, problemBox, replace, toast } from "./dom.js";
import { bytes, dateTime } from "./format.js";
import { patch } from "./patch.js";

const ENDED = new Set(["completed", "failed", "cancelled", "superseded"]);

export function exportPanel(runId) {
  const path = `/v1/runs/${encodeURIComponent(runId)}/exports`;
  const destination = el("input", { id: "destination", placeholder: "file:///folder or s3://bucket/prefix",
    spellcheck: "false", autocomplete: "off" });
  const checkpoints = el("select", { id: "which" }, el("option", { value: "latest" }, "newest checkpoint"),
    el("option", { value: "all" }, "all checkpoints"));
  const errors = el("div", { "aria-live": "polite" });
  const shown = el("div", { class: "exports", "aria-live": "polite" });
  const known = new Map();

  function request() {
    const body = { checkpoints: checkpoints.value };
    if (destination.value.trim()) body.destination = destination.value.trim();
    return body;
  }
  const start = oneAtATime(async () => {
    replace(errors);
    try {
      update(await post(path, request()));
      toast("Export started");
    } catch (error) {
      replace(errors, problemBox(error));
    }
  });
  function update(view) {
    known.set(view.id, view);
    const newest = [...known.values()].sort((a, b) => b.created_at - a.created_at);
    patch(shown, newest.map((one) => card(one, update)));
  }
  async function load() {
    for (const view of await list(path)) update(view);
  }
  const node = el("section", { class: "panel", id: "export-panel" }, el("h2", {}, "Export"),
    el("div", { class: "start" },
      el("div", { class: "field grow" }, el("label", { for: "destination" }, "Destination"), destination,
        el("small", {}, `Empty: the run's archive.destination, else exports/${runId} in the control plane's data folder.`)),
      el("div", { class: "field" }, el("label", { for: "which" }, "Checkpoints"), checkpoints),
      el("div", { class: "actions" },
        el("button", { type: "button", class: "primary", "data-action": "export", onclick: start }, "Export"),
        el("button", { type: "button", class: "quiet", onclick: () => copyText(asCurl("POST", path, request())) }, "Copy as curl"))),
    errors, shown);
  return { node, update, load };
}

function card(view, update) {
  const share = view.bytes_total ? view.bytes_done / view.bytes_total : ENDED.has(view.state) ? 1 : 0;
  const act = oneAtATime(async (call) => {
    try {
      update(await call());
    } catch (error) {
      toast(error.message, true);
    }
  });
  const own = `/v1/exports/${encodeURIComponent(view.id)}`;
  return el("article", { class: "export", "data-key": view.id, "data-export": view.id, "data-state": view.state },
    el("div", { class: "row destination" }, el("span", { class: `pill ${view.state}` }, view.state),
      el("code", { class: "grow" }, view.destination), el("small", {}, dateTime(view.created_at))),
    el("progress", { max: 1, value: share, "aria-label": "Export progress" }),
    el("div", { class: "row" },
      el("small", { class: "grow" }, `${view.files_done} of ${view.files_total} files, ${bytes(view.bytes_done)} of ${bytes(view.bytes_total)}`),
      ENDED.has(view.state)
        ? el("button", { type: "button", class: "quiet", onclick: () => act(() => post(`${own}/verify`)) }, "Verify again")
        : el("button", { type: "button", class: "quiet", onclick: () => act(() => remove(own)) }, "Cancel"),
      view.state === "completed" ? el("a", { href: `${own}/archive`, download: true }, "Download tar") : null),
    view.manifest_sha256 ? el("small", {}, "manifest sha256 ", el("code", {}, view.manifest_sha256)) : null,
    notes("Kept beside another file", view.conflicts, "conflict"), notes("Problems", view.problems, "problem"));
}

function notes(title, items, kind = "") {
  if (!items.length) return null;
  return el("details", { class: kind, open: Boolean(kind) }, el("summary", {}, `${title}: ${items.length}`),
    el("ul", {}, ...items.map((text) => el("li", {}, text))));
}
