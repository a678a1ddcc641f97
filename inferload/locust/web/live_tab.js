// Tab "Inference" of Locust's page: draws the live view into the tab that the query string selects.
(() => {
  const base = new URL("../", document.currentScript.src);
  const KEY = "inference";
  const CHECK_MS = 300; // React draws the page anew at any time
  let root = null;
  let loading = null;

  const load = () => {
    const script = (name) =>
      new Promise((resolve, reject) => {
        const node = document.createElement("script");
        node.src = new URL(`static/${name}`, base);
        node.onload = resolve;
        node.onerror = reject;
        document.head.append(node);
      });
    for (const name of ["uPlot.min.css", "live.css"]) {
      const link = document.createElement("link");
      link.rel = "stylesheet";
      link.href = new URL(`static/${name}`, base);
      document.head.append(link);
    }
    const names = ["uPlot.iife.min.js", "live_charts.js", "live_steer.js", "live.js"];
    return names.reduce((before, name) => before.then(() => script(name)), Promise.resolve());
  };

  const check = async () => {
    const list = document.querySelector("[role=tablist]");
    const selected = new URLSearchParams(location.search).get("tab") === KEY;
    if (!list || !selected) {
      root?.remove();
      return;
    }
    loading ??= load();
    await loading;
    if (!root) {
      root = document.createElement("section");
      root.id = "inferload-live";
      root.setAttribute("aria-label", "Inference");
      document.body.append(root);
      window.inferloadLive.mount(root, base, false);
    }
    const panel = list.closest(".MuiContainer-root") ?? list.parentElement.parentElement;
    if (root.parentElement !== panel) panel.append(root);
  };
  const loop = async () => {
    try {
      await check();
    } finally {
      setTimeout(loop, CHECK_MS);
    }
  };
  loop();
})();
