// Signing in with the control plane's token; the cookie that comes back is not readable here.

import { post } from "./api.js";
import { el, problemBox, replace } from "./dom.js";

export function showSignIn(content, whenDone) {
  const token = el("input", { type: "password", id: "token", autocomplete: "current-password", required: true });
  const errors = el("div", {});
  const form = el("form", { class: "panel narrow" }, el("h1", {}, "Sign in"),
    el("p", {}, "This control plane needs its token (DFLASH_MESH_TOKEN)."),
    el("label", { for: "token" }, "Token"), token, errors,
    el("div", { class: "actions" }, el("button", { type: "submit", class: "primary" }, "Sign in")));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      await post("/v1/session", { token: token.value });
      whenDone();
    } catch (error) {
      replace(errors, problemBox(error));
      token.select();
    }
  });
  replace(content, form);
  token.focus();
}
