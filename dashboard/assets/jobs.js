// The buttons of a run: each posts to the API with a CSRF token fetched just before.
(function () {
  "use strict";

  async function post(path, body) {
    const issued = await fetch("/api/csrf", { headers: { Accept: "application/json" } });
    if (!issued.ok) {
      throw new Error("the server asks for a token: open /login");
    }
    const { token } = await issued.json();
    const answer = await fetch(path, {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-Fusion-CSRF": token },
      body: JSON.stringify(body),
    });
    if (!answer.ok) {
      const failure = await answer.json().catch(() => null);
      throw new Error(failure ? failure.error.message : `the server answered ${answer.status}`);
    }
  }

  async function act(clicks, path, body) {
    const none = window.dash_clientside.no_update;
    if (!clicks) {
      return [none, none];
    }
    try {
      await post(path, body);
      return [Date.now(), ""];
    } catch (error) {
      return [Date.now(), error.message];
    }
  }

  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    fusion: {
      apply: (clicks, run, only) => act(clicks, "/api/jobs", { run: run, only: only }),
      revert: (clicks, run) => act(clicks, `/api/runs/${encodeURIComponent(run)}/revert`, {}),
      cancel: (clicks, run) => act(clicks, `/api/jobs/${encodeURIComponent(run)}/cancel`, {}),
      search: (text) => {
        const grid = window.dash_ag_grid && window.dash_ag_grid.getApi("kernels-grid");
        if (grid) {
          grid.setGridOption("quickFilterText", text || "");
        }
        return window.dash_clientside.no_update;
      },
      compare: (rows) => {
        const two = (rows || []).map((row) => [row.created, row.run]).sort();
        return two.length === 2
          ? [`/compare/${two[0][1]}/${two[1][1]}`, `Compare ${two[0][1]} → ${two[1][1]}`]
          : ["/", "Pick two runs to compare them"];
      },
      pick: (names) => names || [],
      title: (title) => {
        document.title = title;
        return window.dash_clientside.no_update;
      },
    },
  });
})();
