// Subgraphs stand on the page of a finding only: their library is loaded when the first is drawn.
(function () {
  "use strict";

  const { createElement, lazy, Suspense } = window.React;
  const source = document.querySelector('meta[name="late-script"]').content;

  function load() {
    return new Promise((done, fail) => {
      const script = document.createElement("script");
      script.src = source;
      script.onload = () => {
        // The library takes the place of `early`. One component must not become another meanwhile.
        const library = window.dash_cytoscape.Cytoscape;
        window.dash_cytoscape = early;
        done({ default: library });
      };
      script.onerror = () => fail(new Error("the library of subgraphs did not load"));
      document.head.append(script);
    });
  }

  const Late = lazy(load);
  const Cytoscape = (props) =>
    createElement(Suspense, { fallback: null }, createElement(Late, props));
  const early = (window.dash_cytoscape = { Cytoscape });
})();
