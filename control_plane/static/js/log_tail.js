// The last log lines, live; follows the end unless a person has scrolled up.

import { el } from "./dom.js";
import { clock } from "./format.js";

const MOST_LINES = 400;

export function logTail() {
  const lines = el("ol", { class: "log", tabindex: 0, "aria-label": "Log lines" });
  const node = el("section", { class: "panel" }, el("h2", {}, "Log"), lines);

  function add(line) {
    const atEnd = lines.scrollHeight - lines.scrollTop - lines.clientHeight < 24;
    lines.append(el("li", { class: line.level },
      el("time", {}, clock(line.created_at)), el("b", {}, `${line.role} ${line.rank}`),
      el("span", {}, line.message)));
    while (lines.children.length > MOST_LINES) lines.firstChild.remove();
    if (atEnd) lines.scrollTop = lines.scrollHeight;
  }
  return { node, add };
}
