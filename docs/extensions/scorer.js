// Scores of the search: a page whose title begins with the query comes first.
var Scorer = {
  score: ([page, title, anchor, description, score]) => {
    const query = new URLSearchParams(window.location.search).get("q") || "";
    const isTitle = !anchor && title.toLowerCase().startsWith(query.toLowerCase().trim());
    return score + (isTitle ? 1000 : 0);
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
