// The order of the search's results: Sphinx's own scores, with the pages of single vendors and suites last.
var Scorer = {
  score: ([page, , , , score]) => (/^(vendors|suites)\//.test(page) ? score - 100 : score),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
