// Generated source scrolls in an area of Mantine's that the keyboard cannot reach by itself.
(function () {
  "use strict";

  function reachable() {
    for (const area of document.querySelectorAll(".mantine-ScrollArea-viewport:not([tabindex])")) {
      area.tabIndex = 0;
    }
  }

  new MutationObserver(reachable).observe(document, { childList: true, subtree: true });
})();
