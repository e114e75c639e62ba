// Sends files as they are, one behind the other, with a CSRF token fetched just before.
(function () {
  "use strict";

  const at = (id) => document.getElementById(id);

  function say(id, text) {
    if (at(id)) {
      at(id).textContent = text;
    }
  }

  function open(path) {
    window.history.pushState({}, "", path);
    window.dispatchEvent(new CustomEvent("_dashprivate_pushstate"));
  }

  // Ranks whose files do not name them are numbered in this order: rank10 comes after rank9.
  function inOrder(chosen) {
    return [...chosen].sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }));
  }

  async function send(chosen) {
    const files = inOrder(chosen);
    const what = files.length === 1 ? files[0].name : `${files.length} files`;
    const parts = new URLSearchParams();
    for (const file of files) {
      // An address holds 64 KiB: 64 names, nine characters for each of theirs.
      parts.append("name", file.name.slice(0, 60));
      parts.append("size", file.size);
    }
    say("upload-note", "");
    const accept = { headers: { Accept: "application/json" } };
    const issued = await fetch("/api/csrf", accept).catch(() => null);
    if (issued === null) {
      say("upload-note", "the server does not answer: start it again (fusion-advisor serve)");
      return;
    }
    if (!issued.ok) {
      say("upload-note", "the server asks for a token: open /login");
      return;
    }
    const { token } = await issued.json();
    const request = new XMLHttpRequest();
    request.open("POST", `/api/uploads?${parts}`);
    request.setRequestHeader("Content-Type", "application/octet-stream");
    request.setRequestHeader("X-Fusion-CSRF", token);
    request.responseType = "json";
    request.upload.onprogress = (event) => {
      const percent = event.lengthComputable ? Math.round((100 * event.loaded) / event.total) : 0;
      say("upload-progress", `${what}: ${percent} % sent`);
    };
    request.onload = () => {
      say("upload-progress", "");
      if (request.status === 202) {
        open(`/run/${request.response.run}`);
        return;
      }
      const failure = request.response && request.response.error;
      say("upload-note", failure ? failure.message : `the server answered ${request.status}`);
    };
    request.onerror = () => say("upload-note", "the connection broke off: send it again");
    request.send(new Blob(files));
  }

  document.addEventListener("click", (event) => {
    if (!event.target.closest('[data-upload="choose"]')) {
      return;
    }
    const input = document.createElement("input");
    input.type = "file";
    input.multiple = true;
    input.addEventListener("change", () => input.files.length && send(input.files));
    input.click();
  });

  for (const kind of ["dragover", "drop"]) {
    document.addEventListener(kind, (event) => {
      if (!event.target.closest || !event.target.closest('[data-upload="drop"]')) {
        return;
      }
      event.preventDefault();
      if (kind === "drop" && event.dataTransfer.files.length) {
        send(event.dataTransfer.files);
      }
    });
  }
})();
