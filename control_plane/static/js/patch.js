// Bringing shown elements up to date without replacing those that are still right, so that focus,
// a selection, a click in progress and an opened <details> survive the next event.

/** Make the children of `node` look like the elements `wanted`; `data-key` says who is who. */
export function patch(node, wanted) {
  const known = new Map([...node.children].map((child) => [child.dataset.key, child]));
  arrange(node, wanted.map((fresh) => {
    const old = fresh.dataset.key === undefined ? undefined : known.get(fresh.dataset.key);
    return old ? merge(old, fresh) : fresh;
  }));
}

/** `old` changed to look like `fresh` where it can be kept, else `fresh`. */
function merge(old, fresh) {
  if (old.isEqualNode(fresh)) return old;
  if (old.nodeType === Node.TEXT_NODE && fresh.nodeType === Node.TEXT_NODE) {
    old.data = fresh.data;
    return old;
  }
  // A button that says something else does something else: its listener must come with it.
  if (old.nodeName !== fresh.nodeName || fresh.nodeName === "BUTTON") return fresh;
  copyAttributes(old, fresh);
  const before = [...old.childNodes];
  arrange(old, [...fresh.childNodes].map((child, i) => (before[i] ? merge(before[i], child) : child)));
  return old;
}

function copyAttributes(old, fresh) {
  const isPersons = (name) => name === "open" && old.nodeName === "DETAILS";
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && !isPersons(name)) old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) === value || isPersons(name)) continue;
    // The page's policy allows no style attribute from a string, only through the object.
    if (name === "style") old.style.cssText = value;
    else old.setAttribute(name, value);
  }
}

/** Exactly these children in this order; one that is in its place is not moved, which would blur it. */
function arrange(node, children) {
  const kept = new Set(children);
  for (const child of [...node.childNodes]) if (!kept.has(child)) child.remove();
  children.forEach((child, i) => {
    if (node.childNodes[i] !== child) node.insertBefore(child, node.childNodes[i] ?? null);
  });
}
