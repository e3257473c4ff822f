"use strict";
/* Names for the theme's sidebars, and the keyboard for tables that scroll. */

document.addEventListener("DOMContentLoaded", () => {
  for (const [selector, name] of [[".sidebar-drawer", ".sidebar-tree"], [".toc-drawer", ".toc-title"]]) {
    const words = document.querySelector(name);
    const label = words && (words.getAttribute("aria-label") || words.textContent.trim());
    if (label) document.querySelector(selector).setAttribute("aria-label", label);
  }
  for (const box of document.querySelectorAll(".table-wrapper, .highlight pre")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
  }
});
