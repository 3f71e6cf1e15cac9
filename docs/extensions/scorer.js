// Scores of the search: a page whose title holds the query comes first.
var Scorer = {
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 1000,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
