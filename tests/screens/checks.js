// Find visible problems in the layout of a page, each as a sentence.
"use strict";
window.flagperfChecks = (() => {
  const MAX_PROBLEMS = 20;
  const CLIPS = new Set(["auto", "scroll", "hidden", "clip"]);

  const seen = (element) =>
    element.checkVisibility({ contentVisibilityAuto: true, opacityProperty: true, visibilityProperty: true });

  const name = (element) => {
    const classes = typeof element.className === "string" && element.className.trim();
    return `<${element.localName}${element.id ? " #" + element.id : ""}${classes ? " ." + classes.replace(/\s+/g, ".") : ""}>`;
  };

  const words = (text) => JSON.stringify(text.trim().replace(/\s+/g, " ").slice(0, 40));

  // The visible part of a box inside the elements that scroll or clip it; null if no part is visible.
  const clipped = (box, element) => {
    let { left, top, right, bottom } = box;
    for (let at = element; at && at !== document.body && at !== document.documentElement; at = at.parentElement) {
      const style = getComputedStyle(at);
      if (style.position === "fixed") break;
      if (!CLIPS.has(style.overflowX) && !CLIPS.has(style.overflowY)) continue;
      const around = at.getBoundingClientRect();
      left = Math.max(left, around.left);
      right = Math.min(right, around.right);
      top = Math.max(top, around.top);
      bottom = Math.min(bottom, around.bottom);
    }
    return right - left > 1 && bottom - top > 1 ? { left, top, right, bottom } : null;
  };

  const elements = () => [...document.body.querySelectorAll("*")].filter(seen);

  const tooWide = () => {
    const problems = [];
    const width = document.documentElement.clientWidth;
    if (document.documentElement.scrollWidth > width + 1)
      problems.push(`the page is ${document.documentElement.scrollWidth} px wide in a window of ${width} px`);
    for (const element of elements()) {
      const box = clipped(element.getBoundingClientRect(), element);
      if (box && (box.right > width + 1 || box.left < -1))
        problems.push(`${name(element)} reaches from ${Math.round(box.left)} to ${Math.round(box.right)} px of ${width}`);
    }
    return problems;
  };

  // Letters fill the middle of the box of their line; narrow lines may overlap outside of it.
  const inner = (box) => {
    const height = box.bottom - box.top;
    return { left: box.left + 1, right: box.right - 1, top: box.top + height / 4, bottom: box.bottom - height / 4 };
  };

  const texts = () => {
    const boxes = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const node = walker.currentNode;
      const parent = node.parentElement;
      if (!node.data.trim() || !parent || !seen(parent)) continue;
      const range = document.createRange();
      range.selectNodeContents(node);
      for (const rect of range.getClientRects()) {
        const box = clipped(inner(rect), parent);
        if (box) boxes.push({ box, element: parent, name: words(node.data), node });
      }
    }
    return boxes;
  };

  const things = () =>
    elements()
      .filter((element) => element.matches("canvas, img, svg, input, select, button, video"))
      .map((element) => ({ element, box: clipped(inner(element.getBoundingClientRect()), element), name: name(element) }))
      .filter((thing) => thing.box);

  // A text is never part of another text; other elements may contain those that overlap them.
  const related = (one, other) =>
    one.node && other.node
      ? one.node === other.node
      : one.element.contains(other.element) || other.element.contains(one.element);

  const over = (one, other) =>
    Math.min(one.right, other.right) - Math.max(one.left, other.left) > 1 &&
    Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top) > 1;

  const overlaps = () => {
    const problems = [];
    const boxes = [...texts(), ...things()].sort((one, other) => one.box.top - other.box.top);
    let open = [];
    for (const one of boxes) {
      open = open.filter((other) => other.box.bottom > one.box.top);
      for (const other of open)
        if (over(one.box, other.box) && !related(one, other) && !floats(one, other))
          problems.push(`${one.name} overlaps ${other.name}`);
      open.push(one);
    }
    return problems;
  };

  // Fixed and sticky elements overlap others on purpose.
  const floats = (one, other) => held(one.element) !== held(other.element);
  const held = (element) => {
    for (let at = element; at && at !== document.body; at = at.parentElement)
      if (["fixed", "sticky"].includes(getComputedStyle(at).position)) return at;
    return null;
  };

  const limited = (problems) =>
    problems.length > MAX_PROBLEMS
      ? [...problems.slice(0, MAX_PROBLEMS), `... and ${problems.length - MAX_PROBLEMS} more`]
      : problems;

  const painted = (selector) =>
    [...document.querySelectorAll(selector)].map((canvas) => {
      if (!canvas.width || !canvas.height) return false;
      const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
      for (let at = 3; at < pixels.length; at += 4) if (pixels[at]) return true;
      return false;
    });

  const frame = () => new Promise((done) => requestAnimationFrame(done));

  // Scroll to each element, as a reader does; return how many do not get the expected content.
  const readThrough = async (selector, content) => {
    let missing = 0;
    for (const element of document.querySelectorAll(selector)) {
      if (!seen(element)) continue;
      element.scrollIntoView({ block: "center" });
      for (let waited = 0; waited < 300 && !element.querySelector(content); waited++) await frame();
      missing += !element.querySelector(content);
    }
    scrollTo(0, 0);
    await frame();
    return missing;
  };

  return { readThrough, layout: () => [...limited(tooWide()), ...limited(overlaps())], painted };
})();
