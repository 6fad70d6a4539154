// Before the page is drawn, so that it never flashes in the other theme. No module: those run later.
(() => {
  let theme = null;
  try {
    theme = localStorage.getItem("embeddedpulsar.theme");
  } catch (error) {
    theme = null; // the browser keeps nothing for this page: the system decides
  }
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
})();
