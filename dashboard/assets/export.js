// Saves charts and tables as files, from what the page already holds: no request is made.
(function () {
  "use strict";

  function save(name, type, text) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  // A cell that a spreadsheet would run as a formula is kept as text.
  function cell(value) {
    const text = value === null || value === undefined ? "" : String(value);
    const safe = typeof value === "string" && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
    return `"${safe.replace(/"/g, '""')}"`;
  }

  function plain(text) {
    const box = document.createElement("textarea");
    box.innerHTML = String(text).replace(/<br>/g, " ");
    return box.value;
  }

  // Plotly decodes typed arrays into `calcdata`-side copies; `_fullData` holds them as arrays.
  function rows(chart) {
    const found = [["series", "x", "y", "low", "high"]];
    for (const trace of chart._fullData) {
      const bars = trace.error_x && trace.error_x.visible ? trace.error_x : null;
      const count = Math.max((trace.x || []).length, (trace.y || []).length);
      for (let i = 0; i < count; i += 1) {
        const x = trace.x[i];
        const low = bars && bars.arrayminus ? x - bars.arrayminus[i] : "";
        const high = bars && bars.array ? x + bars.array[i] : "";
        const text = (value) => (typeof value === "string" ? plain(value) : value);
        found.push([trace.name, text(x), text(trace.y[i]), low, high]);
      }
    }
    return found.map((row) => row.map(cell).join(",")).join("\r\n");
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-export]");
    if (!button) {
      return;
    }
    const { export: form, chart: name } = button.dataset;
    if (form === "grid") {
      window.dash_ag_grid.getApi(name).exportDataAsCsv({
        fileName: `${name}.csv`,
        processCellCallback: (given) => {
          const told = given.node.data[`${given.column.getColId()}_text`];
          const value = told === undefined ? given.value : told;
          return typeof value === "string" && /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
        },
      });
      return;
    }
    const chart = document.getElementById(name).querySelector(".js-plotly-plot");
    if (form === "csv") {
      save(`${name}.csv`, "text/csv", rows(chart));
    } else {
      const size = chart.getBoundingClientRect();
      window.Plotly.downloadImage(chart, {
        format: form,
        filename: name,
        width: Math.round(size.width),
        height: Math.round(size.height),
      });
    }
  });
})();
