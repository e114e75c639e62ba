// Cells of the tables. React escapes every text; nothing from a report becomes markup or a script.
(function () {
  "use strict";

  const cells = (window.dashAgGridComponentFunctions = window.dashAgGridComponentFunctions || {});

  function follow(event, path) {
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.button !== 0) {
      return;
    }
    event.preventDefault();
    window.history.pushState({}, "", path);
    window.dispatchEvent(new CustomEvent("_dashprivate_pushstate"));
    window.scrollTo(0, 0);
  }

  // A link within the dashboard: the row's `href` must be a path here, whatever it says.
  cells.PageLink = function (props) {
    const path = String(props.data.href || "");
    if (!/^\/run\/[\w./-]+$/.test(path)) {
      return window.React.createElement("span", null, props.value);
    }
    const click = (event) => follow(event, path);
    return window.React.createElement("a", { href: path, onClick: click }, props.value);
  };

  // A number that sorts as a number and reads as the text beside it.
  cells.Figure = function (props) {
    return window.React.createElement("span", null, props.data[props.colDef.field + "_text"]);
  };

  // AG Grid follows the page between light and dark.
  function followScheme() {
    const scheme = document.documentElement.getAttribute("data-mantine-color-scheme");
    document.body.dataset.agThemeMode = scheme === "dark" ? "dark" : "light";
  }
  const watched = { attributes: true, attributeFilter: ["data-mantine-color-scheme"] };
  new MutationObserver(followScheme).observe(document.documentElement, watched);
  document.addEventListener("DOMContentLoaded", followScheme);
})();
