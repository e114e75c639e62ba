// Says when the server does not answer, so that nothing on a page is taken for the present state.
(function () {
  "use strict";

  const PROBE_MS = 2000;
  const ask = window.fetch.bind(window);
  let shown = window.location.pathname; // of the page that was drawn last
  let probe = null;

  function say() {
    const box = document.createElement("div");
    box.id = "server-lost";
    box.setAttribute("role", "alert");
    box.textContent =
      "The server does not answer: what this page shows may be out of date. " +
      "Start it again (fusion-advisor serve); the page then goes on by itself.";
    document.body.append(box);
  }

  function lost() {
    if (probe === null) {
      say();
      const path = window.location.pathname;
      probe = setInterval(() => ask(path, { method: "HEAD" }).then(found, () => {}), PROBE_MS);
    }
  }

  function found() {
    if (probe === null) {
      return;
    }
    clearInterval(probe);
    probe = null;
    document.getElementById("server-lost").remove();
    if (window.location.pathname !== shown) {
      window.location.reload(); // what was asked for meanwhile was never drawn
    }
  }

  // A page that is left or asks to stop a request has not lost the server.
  window.fetch = (...call) => {
    const path = window.location.pathname;
    return ask(...call).then(
      (answer) => {
        found();
        shown = path;
        return answer;
      },
      (error) => {
        if (error.name !== "AbortError") {
          lost();
        }
        throw error;
      },
    );
  };
})();
