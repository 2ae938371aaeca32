// Light and dark: the system's choice until a person makes one.

const KEY = "dflash-mesh-theme";

export function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

export function toggleTheme() {
  const theme = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem(KEY, theme);
  } catch {
    // Storage is off: the choice lasts until the page is left.
  }
  dispatchEvent(new Event("themechange"));
}

/** A colour of the style sheet by its custom property. */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
