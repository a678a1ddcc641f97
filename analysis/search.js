// Draws the picture in the reader's colours and to the page's width, and again when they change.
(async function () {
  "use strict";

  // What stands in the element as base64 of gzip.
  async function unpacked(id) {
    const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  }

  const library = document.createElement("script");
  library.textContent = await unpacked("plotly");
  document.head.append(library);

  const place = document.getElementById("picture");
  const figure = JSON.parse(document.getElementById("figure").textContent);

  function fitting() {
    const style = getComputedStyle(document.documentElement);
    const of = (name) => style.getPropertyValue(name).trim();
    const change = { width: place.clientWidth, "font.color": of("--text"), "hoverlabel.bgcolor": of("--card"),
      "hoverlabel.font.color": of("--text"), "font.size": place.clientWidth < 600 ? 10.5 : 12 };
    for (const name of Object.keys(figure.layout).filter((name) => /^[xy]axis/.test(name))) {
      for (const part of ["gridcolor", "linecolor", "zerolinecolor"]) change[name + "." + part] = of("--line");
    }
    return change;
  }

  const options = { displaylogo: false, displayModeBar: place.clientWidth >= 600, modeBarButtonsToRemove: ["select2d", "lasso2d"] };
  figure.layout.font = { family: getComputedStyle(document.body).fontFamily, size: 12 };
  figure.layout.width = place.clientWidth;
  const again = () => Plotly.relayout(place, fitting());
  Plotly.newPlot(place, figure.data, figure.layout, options).then(again);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  new ResizeObserver(() => { if (place.layout && place.layout.width !== place.clientWidth) again(); }).observe(place);
})();
