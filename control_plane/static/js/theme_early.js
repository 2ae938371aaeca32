// Before the first paint: the theme a person chose earlier, else the system's.
(function () {
  try {
    const chosen = localStorage.getItem("dflash-mesh-theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch (error) {
    // Storage is off: the system's theme stays.
  }
})();
