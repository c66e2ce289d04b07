// Links in lines of evidence: to rows of tables, frames of the flame graph, and steps.

const SHORTENED = 80; // maximum characters of a name in evidence

// the first table with each name of a window
function namesOf(details) {
  const found = new Map();
  const add = (table, names) => {
    for (const name of names || [])
      for (const each of [name, name.slice(0, SHORTENED)]) if (!found.has(each)) found.set(each, [table, name]);
  };
  const operators = details.operators || {};
  add("operators", column(operators.name, "name"));
  add("kernels", column((details.kernels || {}).rows, "name"));
  for (const flame of Object.values(details.flames || {}))
    add(
      "flame",
      flame.names.filter((_, place) => ["code", "library", "module"].includes(FRAME_KINDS[flame.kinds[place]])),
    );
  return found;
}

// names that are also common words count only if the line is about them
const isPlain = (name) => /::|\.py\(\d+\): /.test(name);

// whether the name at this position is a whole word
function stands(line, from, name) {
  const after = line.slice(from + name.length);
  if (!isPlain(name)) return from === 0 && /^(: |, self)/.test(after);
  return !/[\w:/.]/.test(line[from - 1] || "") && !/^[\w:]/.test(after.replace(/^: /, " "));
}

function namedIn(line, names) {
  const found = [];
  for (const [name, [table, whole]] of names) {
    const from = line.indexOf(name);
    if (from >= 0 && stands(line, from, name))
      found.push({ from, to: from + name.length, href: address(table, { at: whole }) });
  }
  return found;
}

function stepsIn(line, steps) {
  return [...line.matchAll(/\bsteps? (\d+)/g)]
    .filter((match) => steps.has(Number(match[1])))
    .map((match) => ({
      from: match.index,
      to: match.index + match[0].length,
      href: address("steps", { at: match[1] }),
    }));
}

// a text with links; the longest name wins if two overlap
function linked(line, links) {
  const chosen = [];
  for (const each of links.sort((a, b) => b.to - b.from - (a.to - a.from)))
    if (!chosen.some((other) => each.from < other.to && other.from < each.to)) chosen.push(each);
  const pieces = [];
  let done = 0;
  for (const { from, to, href } of chosen.sort((a, b) => a.from - b.from)) {
    pieces.push(line.slice(done, from), el("a", { href }, line.slice(from, to)));
    done = to;
  }
  return [...pieces, line.slice(done)];
}

// a function that adds links to a line; without details (findings about a whole run), it adds none
function evidenceLinks(details) {
  const names = namesOf(details);
  const steps = new Set(column((details.steps || {}).rows, "step") || []);
  return (line) => linked(line, [...namedIn(line, names), ...stepsIn(line, steps)]);
}
