// A second window has the lines, modules and shapes of one that was recorded without them: never its times.

function withExplanation(window_, details) {
  const found = (DATA.explanations || {})[window_.stage];
  if (!details || !details.explained || !found) return details;
  const { shapes, ...parts } = found.parts;
  const operators = shapes ? { ...details.operators, shapes } : details.operators;
  const limits = [...(parts.limits || []), ...(details.limits || [])];
  return { ...details, ...parts, limits, operators, explanation: found };
}

/* Above what a second window tells. */
function explanationLead(details, text) {
  const found = details.explanation;
  if (!found) return text;
  return `${text} From ${found.steps}, recorded again with stacks, which make a step longer.`;
}
