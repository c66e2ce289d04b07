// A second window has the lines, modules and shapes of one that was recorded without them: never its times.

function withExplanation(window_, details) {
  const found = (DATA.explanations || {})[window_.stage];
  if (!details || !details.explained || !found) return details;
  const { shapes, ...parts } = found.parts;
  const operators = shapes ? { ...details.operators, shapes } : details.operators;
  const limits = [...(parts.limits || []), ...(details.limits || [])];
  return { ...details, ...parts, limits, operators, explanation: found };
}

const ofRank = (found, rank) => (rank && rank.rank !== found.rank ? ` of rank ${found.rank}` : "");

/* On the first screen: which steps say what. */
function explanationLine(details, rank) {
  const found = details.explanation;
  if (!found) return null;
  return el(
    "p",
    { class: "slow-line muted" },
    `Lines, modules, shapes and the flame graph are of ${found.steps}${ofRank(found, rank)}, recorded again with ` +
      "stacks. All times on this screen are of steps without.",
  );
}

/* Above what a second window tells. */
function explanationLead(details, text) {
  const found = details.explanation;
  if (!found) return text;
  return `${text} Recorded in ${found.steps} with stacks, which make a step longer: take times from the tables above.`;
}
