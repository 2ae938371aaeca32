// Building elements. Text is only ever set through textContent, so data can't become markup.

/** el("button", {class: "quiet", onclick: f, "aria-label": "x"}, "Text", childElement) */
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "class") node.className = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  append(node, children);
  return node;
}

export function append(node, children) {
  for (const child of children.flat()) {
    if (child === null || child === undefined) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

export function replace(node, ...children) {
  node.replaceChildren();
  return append(node, children);
}

/** An action that a second click, while the first is on its way, does not start again. */
export function oneAtATime(action) {
  let running = false;
  return async (...given) => {
    if (running) return;
    running = true;
    try {
      await action(...given);
    } finally {
      running = false;
    }
  };
}

/** Change text only when it differs, so that screen readers and selections are left alone. */
export function setText(node, text) {
  const wanted = text === null || text === undefined ? "" : String(text);
  if (node.textContent !== wanted) node.textContent = wanted;
}

export function toast(text, isError = false) {
  const box = document.getElementById("toast");
  setText(box, text);
  box.className = isError ? "toast shown error" : "toast shown";
  clearTimeout(toast.timer);
  toast.timer = setTimeout(() => { box.className = "toast"; }, isError ? 9000 : 3500);
}

export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    toast("Copied");
  } catch {
    showCopyDialog(text);
  }
}

function showCopyDialog(text) {
  const area = el("textarea", { readonly: true, rows: 6, "aria-label": "Command" });
  area.value = text;
  dialog("Copy this command", [area]);
  area.select();
}

/** A modal dialog; `actions` are buttons beside Close. Returns the dialog element. */
export function dialog(title, content, actions = []) {
  const box = el("dialog", { "aria-label": title });
  const close = el("button", { type: "button", class: "quiet", onclick: () => box.close() }, "Close");
  append(box, [el("h2", {}, title), ...content, el("div", { class: "actions" }, ...actions, close)]);
  box.addEventListener("close", () => box.remove());
  document.body.append(box);
  box.showModal();
  return box;
}

/** A problem of the API: its detail, and a list of the fields that are wrong. */
export function problemBox(error) {
  const fields = (error.fields || []).map((field) =>
    el("li", {}, el("code", {}, field.field), ": ", field.message,
      field.suggestion ? ` (did you mean ${field.suggestion}?)` : ""));
  return el("div", { class: "problem", role: "alert" }, el("strong", {}, error.title || "Failed"),
    el("p", {}, error.message), fields.length ? el("ul", {}, ...fields) : null);
}
