"use strict";
/* Rank the sections of the site for the words of a query, and list the pages that they belong to. */

(() => {
  const SECTIONS_OF_A_PAGE = 3;
  const SNIPPET = 160;
  const PAGES = 20;
  const HAN = /\p{Script=Han}/u;
  const stemmer = new EnglishStemmer();

  /* Latin words, and pairs of Chinese characters: Chinese has no blanks between words. */
  function words(text) {
    const found = [];
    for (const run of text.normalize("NFKC").match(/\p{Script=Han}+|[[\p{L}\p{N}_\-]--\p{Script=Han}]+/gv) || []) {
      if (HAN.test(run)) {
        const characters = [...run];
        if (characters.length === 1) found.push(run);
        for (let place = 1; place < characters.length; place++) found.push(characters[place - 1] + characters[place]);
      } else {
        /* lease-time and p_core are words, and so are their parts */
        const whole = run.replace(/^-+|-+$/g, "");
        const parts = whole.split(/[-_]+/).filter(Boolean);
        found.push(...(parts.length > 1 ? [whole, ...parts] : parts));
      }
    }
    return found;
  }

  function term(word) {
    const lower = word.toLowerCase();
    if (stopwords.has(lower)) return null;
    return HAN.test(lower) ? lower : stemmer.stemWord(lower);
  }

  const index = new MiniSearch({
    fields: ["title", "heading", "keys", "text"],
    tokenize: words,
    processTerm: term,
    searchOptions: {
      boost: { title: 4, heading: 3, keys: 3 },
      fuzzy: (word) => (word.length > 4 && !HAN.test(word) ? 0.2 : false),
      prefix: (word) => word.length > 2 && !HAN.test(word),
      weights: { fuzzy: 0.2, prefix: 0.4 },
    },
  });
  const sections = window.siteSections.map((section, id) => ({ ...section, id }));
  index.addAll(sections);

  /* The pages for a query, best first, each with its best sections. */
  function search(query) {
    const pages = new Map();
    for (const { id, score } of index.search(query)) {
      const section = sections[id];
      const page = pages.get(section.page) || { page: section.page, title: section.title, score, sections: [] };
      if (page.sections.length < SECTIONS_OF_A_PAGE) page.sections.push(section);
      pages.set(section.page, page);
    }
    return [...pages.values()];
  }

  function element(name, text, attributes = {}) {
    const made = document.createElement(name);
    made.textContent = text;
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  }

  /* The part of a text around the first word of the query, with the words of the query marked. */
  function snippet(text, query) {
    const wanted = new Set(words(query).map(term).filter(Boolean));
    const marks = [];
    for (const match of text.matchAll(/\p{Script=Han}{2}|[[\p{L}\p{N}_\-]--\p{Script=Han}]+/gv)) {
      if (wanted.has(term(match[0]))) marks.push([match.index, match.index + match[0].length]);
    }
    const start = marks.length ? Math.max(0, text.lastIndexOf(" ", Math.max(0, marks[0][0] - 40))) : 0;
    const end = start + SNIPPET;
    const made = element("p", start ? "… " : "");
    let place = start;
    for (const [from, to] of marks) {
      if (from < place || to > end) continue;
      made.append(text.slice(place, from), element("mark", text.slice(from, to)));
      place = to;
    }
    made.append(text.slice(place, end), end < text.length ? " …" : "");
    return made;
  }

  function show(query) {
    const pages = query.trim() ? search(query) : [];
    const found = document.getElementById("site-found");
    const words_of = found.dataset;
    const count = pages.length;
    found.textContent = !query.trim() ? "" : count === 0 ? words_of.none : count <= PAGES ? words_of.few.replace("{}", count) : words_of.many.replace("{}", count);
    const hits = document.getElementById("site-hits");
    hits.replaceChildren(
      ...pages.slice(0, PAGES).map((page) => {
        const hit = element("li", "", { class: "site-hit", "data-page": page.page });
        const [best, ...others] = page.sections;
        const language = best.english ? { hreflang: "en" } : {};
        hit.append(element("a", page.title, { href: best.url, ...language }));
        if (best.heading) hit.append(" › ", element("a", best.heading, { href: best.url }));
        hit.append(snippet(best.text, query));
        const more = others.filter((section) => section.heading);
        if (more.length) {
          const list = element("ul", "");
          for (const section of more) {
            const item = element("li", "");
            item.append(element("a", section.heading, { href: section.url }));
            list.append(item);
          }
          hit.append(list);
        }
        return hit;
      }),
    );
  }

  const field = document.getElementById("site-query");
  field.value = new URLSearchParams(location.search).get("q") || "";
  field.addEventListener("input", () => {
    show(field.value);
    history.replaceState(null, "", `?${new URLSearchParams({ q: field.value })}`);
  });
  field.form.addEventListener("submit", (event) => {
    event.preventDefault();
    show(field.value);
  });
  show(field.value);
})();
