// Entry: routes by hash, theme, shortcuts, sign-in. A view is a function that fills the content
// and returns a function that takes it down again.

import { get, remove, whenSignedOut, whetherTokenNeeded } from "./api.js";
import { dialog, el, problemBox, replace, toast } from "./dom.js";
import { showRunsList } from "./runs_list.js";
import { showRun } from "./run_page.js";
import { showSignIn } from "./sign_in.js";
import { toggleTheme } from "./theme.js";

const content = document.getElementById("content");
let takeDown = () => {};
let routed = 0;

/** Each view fills a node of its own, so that one that is left before it is ready shows nothing. */
async function route() {
  const mine = ++routed;
  const view = el("div", { class: "view" });
  const ownLinkState = (kind, text) => { if (mine === routed) setLinkState(kind, text); };
  takeDown();
  takeDown = () => {};
  setLinkState("");
  document.body.classList.remove("stale");
  const match = location.hash.match(/^#\/runs\/([^/?]+)$/);
  replace(content, view);
  try {
    const close = match
      ? await showRun(view, decodeURIComponent(match[1]), ownLinkState)
      : await showRunsList(view, ownLinkState);
    if (mine === routed) takeDown = close;
    else close();
  } catch (error) {
    if (error.status === 401 || mine !== routed) return;
    replace(view, el("section", { class: "panel" }, problemBox(error),
      el("p", {}, el("button", { type: "button", onclick: route }, "Try again"), " ",
        el("a", { href: "#/" }, "All runs"))));
  }
}

function setLinkState(kind, text = "") {
  const box = document.getElementById("link-state");
  box.className = `link-state ${kind}`;
  if (box.textContent !== text) box.textContent = text;
}

whenSignedOut(() => {
  routed += 1;
  takeDown();
  takeDown = () => {};
  showSignIn(content, start);
});

async function start() {
  try {
    const session = await get("/v1/session");
    whetherTokenNeeded(session.required);
    document.getElementById("sign-out").hidden = !session.required || !session.signed_in;
    if (session.required && !session.signed_in) return showSignIn(content, start);
  } catch (error) {
    toast(error.message, true);
  }
  return route();
}

function showHelp() {
  const rows = [
    ["g r", "all runs"], ["n", "start a run"], ["p", "pause or resume this run"],
    ["s", "stop this run"], ["e", "export this run"], ["t", "light or dark"], ["?", "this list"],
  ];
  dialog("Keyboard", [el("dl", { class: "keys" }, ...rows.flatMap(([key, what]) =>
    [el("dt", {}, el("kbd", {}, key)), el("dd", {}, what)]))]);
}

async function focusStartForm() {
  if (!document.querySelector("#preset")) {
    history.pushState(null, "", "#/");
    await route();
  }
  document.querySelector("#preset")?.focus();
}

let previousKey = "";
document.addEventListener("keydown", (event) => {
  const target = event.target;
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (target.matches("input, textarea, select") || target.isContentEditable) return;
  const press = (selector) => document.querySelector(selector)?.click();
  if (event.key === "?") showHelp();
  else if (event.key === "t") toggleTheme();
  else if (event.key === "r" && previousKey === "g") location.hash = "#/";
  else if (event.key === "n") focusStartForm();
  else if (event.key === "p") press("[data-action=pause], [data-action=resume]");
  else if (event.key === "s") press("[data-action=stop]");
  else if (event.key === "e") press("[data-action=export]");
  previousKey = event.key;
});

document.getElementById("theme").addEventListener("click", toggleTheme);
document.getElementById("help").addEventListener("click", showHelp);
document.getElementById("sign-out").addEventListener("click", async () => {
  try {
    await remove("/v1/session");
  } catch (error) {
    toast(error.message, true);
  }
  start();
});
addEventListener("hashchange", route);
start();
