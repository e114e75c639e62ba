// The buttons of a run: each posts to the API with a CSRF token fetched just before.
(function () {
  "use strict";

  const GONE = "the server does not answer: start it again (fusion-advisor serve)";

  function ask(path, options) {
    return fetch(path, options).catch(() => {
      throw new Error(GONE);
    });
  }

  async function post(path, body) {
    const issued = await ask("/api/csrf", { headers: { Accept: "application/json" } });
    if (!issued.ok) {
      throw new Error("the server asks for a token: open /login");
    }
    const { token } = await issued.json();
    const answer = await ask(path, {
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

  function start(clicks, run, only, budget) {
    const seconds = Number(budget) || null;
    return act(clicks, "/api/jobs", { run: run, only: only, budget_s: seconds });
  }

  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    fusion: {
      apply: start,
      continue: start,
      cliff: (clicks, run) => {
        const context = window.dash_clientside.callback_context;
        const clicked = (clicks || []).some((count) => count);
        if (!clicked || !context.triggered_id) {
          return [window.dash_clientside.no_update, window.dash_clientside.no_update];
        }
        document.getElementById("job-status").scrollIntoView({ block: "center" });
        const plan = encodeURIComponent(context.triggered_id.plan);
        return act(1, `/api/runs/${encodeURIComponent(run)}/plans/${plan}/cliff`, {});
      },
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
      forget: () => "",
      title: (title) => {
        document.title = title;
        return window.dash_clientside.no_update;
      },
    },
  });
})();
