// Draws the charts of the page, opens what a link points to, sorts and filters the overview. No library but uPlot.
"use strict";
(() => {
  const STEPS_OF_TIME = [0.001, 0.01, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200,
    14400, 43200, 86400];
  const HEIGHT = 190, MOST_LETTERS = 12; // longer names do not fit below an axis
  const DASHES = [undefined, [8, 3], [3, 3], [12, 3, 3, 3], [1, 2]];
  const drawn = new Map(); // figure -> uPlot
  const hidden = new WeakMap(); // figure -> names of the lines that a click hid
  const data = new WeakMap(); // group -> its parsed data
  let groups = 0;
  let printing = false;

  // -- the parts of a chart -------------------------------------------------------------------------------

  const ink = (name) => getComputedStyle(document.querySelector(".flagperf")).getPropertyValue(`--${name}`).trim();
  const colours = () => Array.from({ length: 8 }, (_, number) => ink(`line-${number}`));

  function time(seconds) {
    const whole = Math.abs(seconds);
    if (whole < 60) return `${+seconds.toFixed(2)} s`;
    const text = (number) => String(Math.floor(number)).padStart(2, "0");
    const rest = whole < 3600 ? "" : `${Math.floor(whole / 3600)}:`;
    return `${seconds < 0 ? "-" : ""}${rest}${rest ? text(whole % 3600 / 60) : Math.floor(whole / 60)}:${text(whole % 60)}`;
  }

  function plain(value) {
    if (value == null) return "–";
    const short = Number(value.toPrecision(4));
    return Math.abs(short) >= 1e15 || (short !== 0 && Math.abs(short) < 1e-4) ? short.toExponential()
      : short.toLocaleString("en", { maximumFractionDigits: 8 });
  }

  function tick(value) {
    for (const [size, word] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]])
      if (Math.abs(value) >= size) return `${+(value / (word === "k" ? 1e3 : size)).toPrecision(4)}${word}`;
    return plain(value);
  }

  function size(value) { // of a position on an axis of powers
    const power = value > 0 ? Math.min(Math.floor(Math.log2(value) / 10), 4) : 0;
    return `${+(value / 1024 ** power).toPrecision(4)}${["", " Ki", " Mi", " Gi", " Ti"][power]}`;
  }

  function powers(_, __, low, high) { // at most eight places
    const first = Math.ceil(Math.log2(low) - 1e-6), last = Math.floor(Math.log2(high) + 1e-6);
    const step = Math.max(1, Math.ceil((last - first) / 7));
    return Array.from({ length: Math.max(0, Math.floor((last - first) / step) + 1) }, (_, place) => 2 ** (first + place * step));
  }

  function ends(numbers) { // the lowest and highest number
    let [low, high] = [Infinity, -Infinity];
    for (const value of numbers) if (value != null) { low = Math.min(low, value); high = Math.max(high, value); }
    return [low, high];
  }

  function span(chart, charts, xs) { // charts of a group have the same time axis, as long as the longest
    const together = charts.filter((other) => other === chart || (other.kind === "time" && other.x === chart.x));
    return ends(together.flatMap((other) => [
      ...other.lines.flatMap((line) => [xs[line.x][0], xs[line.x][xs[line.x].length - 1]]),
      ...(other.bands || []).flatMap(([, start, end]) => [start, end])]));
  }

  function table(chart, charts, xs) { // join the lines of all axes to one table
    const [low, high] = span(chart, charts, xs);
    const lines = chart.lines.map((line) => [xs[line.x], line.y]);
    const whole = low === high ? [low] : [low, high];
    const levels = (chart.levels || []).map((level) => [whole, whole.map(() => level.value)]);
    return uPlot.join([...lines, ...levels, [whole]]);
  }

  function shades(chart) { // draw the bands under the grid
    return (plot) => {
      const { left, top, width, height } = plot.bbox;
      const context = plot.ctx;
      context.save();
      context.beginPath();
      context.rect(left, top, width, height);
      context.clip();
      for (const [name, start, end, low, high] of chart.bands) {
        const from = plot.valToPos(start, "x", true), upper = low == null ? top : plot.valToPos(high, "y", true);
        context.fillStyle = ink(`band-${name.replaceAll(" ", "-")}`) || ink("band-other");
        // A chart with labels has limits, beyond which all is good.
        const to = chart.labels ? left + width : plot.valToPos(end, "x", true);
        context.fillRect(from, upper, Math.max(to - from, 2),
          low == null ? height : plot.valToPos(low, "y", true) - upper);
      }
      context.restore();
    };
  }

  function texts(chart) { // write the labels beside the points, and the name of each band at its edge
    return (plot) => {
      const { left, top, width, height } = plot.bbox, context = plot.ctx, ratio = devicePixelRatio;
      context.save();
      context.font = `${11 * ratio}px system-ui, sans-serif`;
      context.fillStyle = context.strokeStyle = ink("soft-text");
      chart.bands.forEach(([name, start], number) => {
        const x = plot.valToPos(start, "x", true);
        if (x < left || x > left + width) return;
        context.setLineDash([4 * ratio, 4 * ratio]);
        context.beginPath();
        context.moveTo(x, top);
        context.lineTo(x, top + height);
        context.stroke();
        const isRight = x + context.measureText(name).width > left + width;
        context.textAlign = isRight ? "right" : "left";
        context.fillText(name, x + (isRight ? -4 : 4) * ratio, top + height - (6 + 14 * number) * ratio);
      });
      context.fillStyle = ink("text");
      chart.labels.forEach((labels, of) => labels.forEach((text, number) => {
        const line = chart.lines[of];
        if (line.y[number] == null || !plot.series[of + 1].show) return;
        const x = plot.valToPos(line.xs[number], "x", true), y = plot.valToPos(line.y[number], "y", true);
        if (x < left || x > left + width) return;
        context.textAlign = x > left + width - 20 * ratio ? "right" : "left";
        context.fillText(text, x + (context.textAlign === "right" ? -2 : 6) * ratio, y - 6 * ratio);
      }));
      context.restore();
    };
  }

  function order(chart, charts) { // a name has the same colour in all charts, also if a chart has fewer lines
    const [names, ...others] = [chart, ...charts].map((item) => item.lines.map((line) => line.name));
    return others.filter((other) => names.every((name) => other.includes(name)))
      .reduce((most, other) => other.length > most.length ? other : most, names);
  }

  function lines(chart, figure) {
    const palette = colours();
    const names = chart.lines.some((line) => line.dashed) ? null : order(chart, dataOf(figure.parentElement).charts);
    const off = hidden.get(figure) || new Set();
    let number = 0;
    const series = chart.lines.map((line) => {
      const two = !line.dashed && line.y.filter((value) => value != null).length <= 2; // too few for a curve
      const points = two || Boolean(chart.labels);
      const place = names ? names.indexOf(line.name) : line.dashed ? number - 1 : number++;
      return {
        label: line.name, width: line.dashed ? 1 : 1.6, show: !off.has(line.name),
        stroke: line.dashed && line.name === "ideal" ? ink("soft-text") : palette[place % palette.length],
        // On paper colours may be missing, so each line has its own dashes.
        dash: line.dashed ? [2, 4] : DASHES[(printing ? place : Math.floor(place / palette.length)) % DASHES.length],
        points: { show: points, size: 7 }, ...(two ? { paths: () => null } : {}),
        value: (_, value, __, place) => place == null ? summarized(line, chart) : withUnit(value, chart.y),
      };
    });
    for (const level of chart.levels || [])
      series.push({ label: level.name, stroke: ink("text"), width: 1, dash: [6, 4], points: { show: false },
        show: !off.has(level.name), value: () => "" });
    return series;
  }

  // The value of a line while no point is selected, so that a chart can be read without a pointer and in print.
  function summarized(line, chart) {
    const values = line.y.filter((value) => value != null);
    if (!values.length) return "–";
    const kind = chart.summary || "median";
    const sorted = kind === "median" ? [...values].sort((one, other) => one - other) : values;
    const value = kind === "last" ? values[values.length - 1] : kind === "highest" ? ends(values)[1]
      : (sorted[(sorted.length - 1) >> 1] + sorted[sorted.length >> 1]) / 2;
    return `${new Set(values).size > 1 ? `${kind} ` : ""}${withUnit(value, chart.y)}`;
  }

  const withUnit = (value, unit) => value == null ? "–" : unit === "x" ? `${value.toFixed(2)}x` : `${plain(value)}${unit && unit.length < 14 ? ` ${unit}` : ""}`;

  function bounds(chart) {
    return (_, low, high) => {
      if (low == null || !isFinite(low)) return [0, 1];
      [low, high] = ends([low, high, ...chart.bands.flatMap((band) => band.slice(3))]);
      const room = (high - low || Math.abs(high) || 1) * 0.08;
      if (chart.y === "%" && low >= 0 && high <= 100) return [0, 102];
      return chart.floor === 0 && low >= 0 ? [0, high + room] : [low - room, high + room];
    };
  }

  function options(chart, figure, group, width) {
    const text = ink("soft-text");
    const axis = { stroke: text, font: "11px system-ui, sans-serif", labelFont: "11px system-ui, sans-serif",
      grid: { stroke: ink("grid"), width: 1 }, ticks: { stroke: ink("grid"), width: 1, size: 4 } };
    const count = chart.kind !== "time", sizes = chart.kind === "size";
    const named = chart.names && chart.names.every((name) => name.length <= MOST_LETTERS); // such as the values of a sweep
    const label = named ? (x) => chart.names[x - 1] || "" : tick;
    const position = sizes ? size : chart.names ? (x) => chart.names[Math.min(Math.max(Math.round(x), 1), chart.names.length) - 1] : count ? plain : time;
    return {
      width, height: HEIGHT,
      cursor: { sync: { key: `${group}-${chart.x}`, setSeries: false }, drag: { x: true, y: false }, points: { size: 6 }, y: false,
        focus: { prox: -1 } },
      legend: { live: true },
      scales: {
        x: { time: false, ...(sizes ? { distr: 3, log: 2 } : {}),
          range: (_, low, high) => low < high ? [low, high] : sizes ? [low / 2, high * 2] : [low - 1, high + 1] },
        y: { range: bounds(chart) },
      },
      axes: [
        { ...axis, label: chart.x, labelSize: 16, labelGap: 0, size: 26, space: 60,
          ...(sizes ? { splits: powers, filter: (_, places) => places, values: (_, places) => places.map(size) } : count ? { values: (_, places) => places.map(label), incrs: whole() }
            : { values: (_, places) => places.map(time), incrs: STEPS_OF_TIME }) },
        { ...axis, gap: 3,
          size: (_, labels) => Math.max(40, 10 + 6.5 * Math.max(0, ...(labels || []).map((label) => label.length))), values: (_, places) => places.map(tick) },
      ],
      series: [{ label: chart.x.startsWith("time") ? "time" : chart.x, value: (plot, x, _, place) =>
        place == null ? shownPart(plot, position) : position(x) }, ...lines(chart, figure)],
      hooks: { drawClear: [shades(chart)], draw: chart.labels ? [texts(chart)] : [], setSeries: [(plot, number, set) => {
        if (set && "show" in set) hidden.set(figure, new Set(plot.series.filter((series) => !series.show).map((series) => series.label)));
      }] },
    };
  }

  const shownPart = (plot, position) => { // the shown part of a zoomed axis
    const xs = plot.data[0], { min, max } = plot.scales.x;
    return min == null || (min <= xs[0] && max >= xs[xs.length - 1]) ? "" : [min, max].map(position).join(" to ");
  };

  const whole = () => Array.from({ length: 16 }, (_, power) => [1, 2, 5].map((factor) => factor * 10 ** power)).flat();

  // -- drawing ----------------------------------------------------------------------------------------------

  function dataOf(group) {
    if (!data.has(group)) {
      const parsed = JSON.parse(group.querySelector("script").textContent);
      for (const chart of parsed.charts) {
        chart.bands = parsed.bands[chart.bands] || [];
        chart.lines = chart.lines.map(([name, x, y, dashed]) => (
          { name, x, xs: parsed.xs[x], y: Array.isArray(y) ? y : Array(parsed.xs[x].length).fill(y), dashed }));
      }
      data.set(group, { ...parsed, number: groups++ });
    }
    return data.get(group);
  }

  function draw(figure) {
    const place = figure.querySelector(".plot");
    const width = printing ? 330 : place.clientWidth;
    drawn.get(figure)?.destroy();
    drawn.delete(figure);
    if (!width) return; // in a closed section: drawn when it opens
    const { xs, charts, number } = dataOf(figure.parentElement);
    const chart = charts[figure.dataset.chart];
    drawn.set(figure, new uPlot(options(chart, figure, number, width), table(chart, charts, xs), place));
    figure.querySelectorAll(".u-legend .u-series:not(:first-child) .u-label").forEach((label) => {
      Object.assign(label, { tabIndex: 0, role: "button", title: "hide or show this line" });
      label.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        label.click();
      });
    });
  }

  const again = () => [...drawn.keys()].forEach(draw);

  const seen = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries)
      if (isIntersecting && !drawn.has(target)) draw(target);
  }, { rootMargin: "200px" });

  const resized = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      const plot = drawn.get(target);
      const width = target.querySelector(".plot").clientWidth;
      if (plot && width && !printing && Math.abs(plot.width - width) > 1) plot.setSize({ width, height: HEIGHT });
    }
  });

  // Paper has light colours, and of the cases those that the reader chose: page.css hides the others.
  const choose = (element) => element.closest?.(".flagperf details.case")?.classList.add("chosen");
  addEventListener("beforeprint", () => {
    printing = true;
    document.documentElement.classList.add("flagperf-printing");
    document.querySelectorAll("figure.chart").forEach((figure) => figure.closest("details:not([open])") || draw(figure));
  });
  addEventListener("afterprint", () => {
    printing = false;
    document.documentElement.classList.remove("flagperf-printing");
    again();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);

  // -- links ------------------------------------------------------------------------------------------------

  function open() { // open the element in the address and its parents
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target || !target.closest(".flagperf")) return;
    for (let each = target; each; each = each.parentElement) if (each.tagName === "DETAILS") each.open = true;
    choose(target);
    target.scrollIntoView();
  }

  // A click on a row of tests opens its details; a click on a link in the row must only follow the link.
  document.addEventListener("click", (event) => {
    choose(event.target);
    const link = event.target.closest?.('a[href^="#"]');
    if (!link) return;
    event.stopPropagation();
    if (link.getAttribute("href") === location.hash) open();
  }, true);
  addEventListener("hashchange", open);

  // -- the overview -----------------------------------------------------------------------------------------

  function sort(head) {
    const rows = [...head.closest("table").tBodies[0].rows];
    const down = head.getAttribute("aria-sort") === "ascending";
    head.parentElement.querySelectorAll("[aria-sort]").forEach((each) => each.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const value = (row) => row.cells[head.cellIndex].dataset.value ?? row.cells[head.cellIndex].textContent;
    const order = (one, other) => {
      const [left, right] = [value(one), value(other)];
      if (!left || !right) return left ? -1 : right ? 1 : 0; // unknown values come last
      const sign = down ? -1 : 1;
      return sign * (isNaN(left) || isNaN(right) ? left.localeCompare(right, "en", { numeric: true }) : left - right);
    };
    rows.sort(order).forEach((row) => row.parentElement.append(row));
  }

  function filter(box) {
    const words = box.querySelector("input").value.toLowerCase().split(/\s+/).filter(Boolean);
    const state = box.querySelector("[aria-pressed=true]")?.dataset.state || "";
    for (const row of document.querySelectorAll("#flagperf-cases tbody tr, .flagperf details.case")) {
      const text = row.dataset.about.toLowerCase();
      row.hidden = (state && row.dataset.state !== state) || !words.every((word) => text.includes(word));
    }
  }

  async function copy(button) {
    const code = button.parentElement.querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
    } catch { // a page from disk may have no clipboard: select the text and copy the selection
      getSelection().selectAllChildren(code);
      document.execCommand("copy");
    }
    button.textContent = "copied";
    setTimeout(() => { button.textContent = "copy"; }, 2000);
  }

  function begin() {
    if (!document.querySelector("meta[name=viewport]")) { // without it a phone shows the page of a desktop, scaled down
      const meta = Object.assign(document.createElement("meta"),
        { name: "viewport", content: "width=device-width, initial-scale=1" });
      document.head.append(meta);
    }
    const page = document.querySelector("main.flagperf");
    const tests = document.getElementById("results-table");
    if (page && tests) arrange(page, tests);
    document.querySelectorAll("figure.chart").forEach((figure) => { seen.observe(figure); resized.observe(figure); });
    document.querySelectorAll(".flagperf th[data-sort] button").forEach((button) =>
      button.addEventListener("click", () => sort(button.closest("th"))));
    document.querySelectorAll(".flagperf .filter-cases").forEach((box) => {
      box.addEventListener("input", () => filter(box));
      box.addEventListener("click", ({ target }) => {
        const button = target.closest("button");
        if (!button) return;
        box.querySelectorAll("button").forEach((each) => each.setAttribute("aria-pressed", each === button));
        filter(box);
      });
    });
    document.querySelectorAll(".flagperf [data-copy]").forEach((button) =>
      button.addEventListener("click", () => copy(button)));
    document.querySelectorAll(".flagperf [data-all]").forEach((button) => button.addEventListener("click", () =>
      document.querySelectorAll(".flagperf details.case:not([hidden])").forEach((each) => {
        each.open = button.dataset.all === "open";
        choose(each);
      })));
    open();
  }

  // -- the tests of pytest-html ---------------------------------------------------------------------------

  // Put the results of the run first, then the table of all tests, which is closed if each test is in its case's section.
  function arrange(page, tests) {
    document.documentElement.lang ||= "en";
    document.querySelectorAll("input.filter[data-test-result]").forEach((box) =>
      box.setAttribute("aria-label", `show ${box.dataset.testResult} tests`));
    const header = document.getElementById("environment-header"), summary = document.querySelector(".summary");
    header.before(page);
    (page.querySelector(".headline + details") || page).append(header, document.getElementById("environment"));
    const all = Object.assign(document.createElement("details"), { className: "tests" });
    const title = document.createElement("summary");
    title.textContent = `All tests: ${document.querySelector(".run-count").textContent}`;
    document.querySelectorAll(".summary h2, .run-count").forEach((each) => each.remove());
    all.append(title, summary, tests);
    page.after(all);
    all.open = !sorted(JSON.parse(document.getElementById("data-container").dataset.jsonblob).tests);
    // The section of a case has the reason of its failures, so the rows of its tests are closed; other tests stay open.
    if (new URLSearchParams(location.search).has("collapsed")) return;
    for (const row of tests.querySelectorAll("tbody:has(.col-case a):has(.extras-row:not(.hidden)) .col-result")) row.click();
  }

  // Put each test into the section of its case, with its outcome, time, links and log; false if some have no case.
  function sorted(tests) {
    const tables = new Map();
    let all = true;
    for (const test of Object.values(tests).flat()) {
      const row = document.createElement("tr");
      row.className = test.result.toLowerCase();
      row.innerHTML = test.resultsTableRow.join("");
      const link = row.querySelector(".col-case a");
      const section = link && document.getElementById(link.getAttribute("href").slice(1));
      if (!section) { all = false; continue; }
      if (!tables.has(section)) tables.set(section, tableIn(section));
      row.querySelector(".col-case").remove();
      const name = row.querySelector(".col-testId");
      const [path, ...rest] = (name?.textContent || "").split("[");
      if (name) name.textContent = [path.split("::").pop(), ...rest].join("[");
      const more = [test.log?.startsWith("No log output") ? "" : `<pre>${test.log}</pre>`,
        ...(test.extras || []).filter((extra) => extra.format_type === "html").map((extra) => extra.content),
        ...(test.tableHtml || [])].join("");
      if (more) name?.insertAdjacentHTML("beforeend", `<details><summary>log</summary>${more}</details>`);
      tables.get(section).append(row);
    }
    for (const [section, table] of tables) {
      const results = [...table.rows].map((row) => row.className);
      const counts = [...new Set(results)].map((result) => `${results.filter((each) => each === result).length} ${result}`);
      section.querySelector("details.pytest > summary").textContent = `Tests of pytest: ${counts.join(", ")}`;
    }
    return all;
  }

  function tableIn(section) {
    const head = document.getElementById("results-table-head").cloneNode(true);
    head.removeAttribute("id");
    head.querySelector(".col-case").remove();
    head.querySelectorAll("th").forEach((each) => each.classList.remove("sortable", "asc", "desc"));
    const part = Object.assign(document.createElement("details"), { className: "part pytest" });
    part.innerHTML = '<summary></summary><div class="wide" tabindex="0"><table><tbody></tbody></table></div>';
    part.querySelector("table").prepend(head);
    section.lastElementChild.append(part);
    return part.querySelector("tbody");
  }

  if (document.readyState === "loading") addEventListener("DOMContentLoaded", begin);
  else begin();
})();
