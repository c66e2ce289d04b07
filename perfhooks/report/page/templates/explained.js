// A second window supplies lines, modules and shapes for a window without them. Its times are not used.

function withExplanation(window_, details) {
  const found = (DATA.explanations || {})[window_.stage];
  if (!details || !details.explained || !found) return details;
  const { shapes, ...parts } = found.parts;
  const operators = shapes ? { ...details.operators, shapes } : details.operators;
  const limits = [...(parts.limits || []), ...(details.limits || [])];
  return { ...details, ...parts, limits, operators, explanation: found };
}

/* The lead of a section whose data is from the second window. */
function explanationLead(details, text) {
  const found = details.explanation;
  if (!found) return text;
  return `${text} Recorded in ${found.steps}, with stacks, which make a step longer.`;
}
