// Flame graphs: columns of nodes, drawn from the zoomed frame downwards.

const FRAME_KINDS = ["code", "library", "module", "operator", "runtime", "label", "kernel", "other"];
const KIND_NAMES = {
  code: "your code",
  library: "installed code",
  module: "module",
  operator: "operator",
  runtime: "device runtime",
  label: "label",
  kernel: "kernel",
  other: "other",
};
const CHANGES = [
  ["takes longer than in the other run", "d-more-3"],
  ["within 5%", "d-same"],
  ["takes less", "d-less-3"],
];
const ROW = 21;

function flameTree(flame) {
  const nodes = flame.parent.map((parent, i) => ({
    parent,
    name: flame.names[flame.frame[i]],
    kind: FRAME_KINDS[flame.kinds[flame.frame[i]]],
    value: flame.value[i],
    before: flame.before ? flame.before[i] : null,
    children: [],
  }));
  nodes.forEach((node, i) => {
    if (node.parent >= 0) nodes[node.parent].children.push(i);
  });
  return nodes;
}

// the thread of the steps, if there are several threads: others mostly wait
function stepThread(nodes) {
  const holds = nodes.map((node) => node.kind === "label" && node.name === "step");
  const marks = [...holds];
  for (let i = nodes.length - 1; i > 0; i -= 1) if (holds[i]) holds[nodes[i].parent] = true;
  const threads = nodes[0].children.filter((child) => holds[child]);
  return threads.length === 1 && !marks[threads[0]] ? threads[0] : 0;
}

// the first zoomed frame: the innermost frame of the user before the stacks branch, else the branch
function firstBranch(nodes) {
  let place = stepThread(nodes);
  let own = nodes[place].kind === "code" ? place : null;
  while (nodes[place].children.length && nodes[nodes[place].children[0]].value >= 0.97 * nodes[place].value) {
    place = nodes[place].children[0];
    if (nodes[place].kind === "code") own = place;
  }
  if (own !== null || place === 0) return own || 0;
  return nodes[place].children.length ? place : nodes[place].parent;
}

// comparison of two runs: red if this run takes longer, blue if the other one does; stronger for larger differences
function changed(node) {
  if (!known(node.before)) return null;
  const most = Math.max(node.value, node.before);
  const share = most > 0 ? (node.value - node.before) / most : 0;
  const strength = Math.abs(share) < 0.05 ? 0 : Math.abs(share) < 0.2 ? 1 : Math.abs(share) < 0.5 ? 2 : 3;
  return strength === 0 ? "d-same" : `d-${share > 0 ? "more" : "less"}-${strength}`;
}

// id is the graph in addresses: its search (find), measure (by), and zoomed frame (at)
function flameGraph(flames, id) {
  let which = Object.keys(flames)[0];
  let nodes,
    root,
    focus,
    words = "";
  const crumbs = el("nav", { class: "crumbs", "aria-label": "Frames around" });
  const canvas = el("div", {
    class: "flame",
    tabindex: "0",
    role: "application",
    "aria-label": "Flame graph; arrow keys move, Enter zooms in, Escape zooms out",
  });
  const detail = el("p", { class: "flame-detail", role: "status" });
  const matched = el("span", { class: "muted" });

  const change = (node) => (known(node.before) ? `, ${ms(node.before / 1e6)} in the other run` : "");
  const time = (node) => `${ms(node.value / 1e6)}, ${percent(node.value / nodes[0].value)}${change(node)}`;
  const describe = (node) => {
    detail.replaceChildren(el("span", { class: "mono" }, node.name), el("span", { class: "muted" }, ` ${time(node)}`));
  };
  const hits = (node) => words !== "" && `${node.name} ${frameName(node.name)}`.toLowerCase().includes(words);

  function load(key) {
    which = key;
    nodes = flameTree(flames[key]);
    zoom(firstBranch(nodes));
  }
  function zoom(place) {
    root = focus = place;
    draw();
  }
  function note() {
    if (!id) return;
    const by = which === Object.keys(flames)[0] ? null : which;
    const at = root === firstBranch(nodes) ? null : nodes[root].name;
    noteAddress(id, { find: search.value.trim(), by, at });
  }
  // the address: zoom into the widest frame with this name, in the measure that has it
  function take({ find, by, at }) {
    words = (find || "").toLowerCase();
    search.value = find || "";
    const keys = Object.keys(flames);
    const holds = (key) => flames[key].names.includes(at);
    load(Object.hasOwn(flames, by) ? by : (known(at) && keys.find(holds)) || keys[0]);
    const found = nodes.map((_, place) => place).filter((place) => nodes[place].name === at);
    if (found.length) zoom(found.reduce((top, place) => (nodes[place].value > nodes[top].value ? place : top)));
    chooser.replaceChildren(...(keys.length > 1 ? [chooserOf(keys)] : []));
  }
  function draw() {
    const drawn = [];
    let deepest = 0;
    const least = nodes[root].value * 0.0008;
    (function lay(place, left, depth) {
      const node = nodes[place];
      drawn.push([place, left, depth]);
      deepest = Math.max(deepest, depth);
      let offset = left;
      for (const child of node.children) {
        if (nodes[child].value >= least) lay(child, offset, depth + 1);
        offset += nodes[child].value;
      }
    })(root, 0, 0);
    canvas.replaceChildren(...drawn.map(([place, left, depth]) => frame(place, left, depth)));
    canvas.style.height = `${(deepest + 1) * ROW}px`;
    drawCrumbs();
    describe(nodes[focus]);
    matched.textContent = words ? `${percent(share(0) / nodes[0].value)} of the time` : "";
  }
  function frame(place, left, depth) {
    const node = nodes[place];
    const dim = words !== "" && !hits(node);
    const width = (node.value / nodes[root].value) * 100;
    return el(
      "div",
      {
        class: `frame k-${node.kind}${dim ? " dim" : ""}${place === focus ? " focus" : ""}`,
        "data-place": place,
        style: {
          left: `${(left / nodes[root].value) * 100}%`,
          width: `${width}%`,
          top: `${depth * ROW}px`,
          background: `var(--${changed(node) || `k-${node.kind}`})`,
        },
        on: {
          click: () => {
            zoom(place === root && node.parent >= 0 ? node.parent : place);
            note();
          },
          mouseenter: () => describe(node),
        },
      },
      width > 2 ? frameName(node.name) : "",
    );
  }
  // total time of matching frames, without double counting of nested ones
  function share(place) {
    return hits(nodes[place])
      ? nodes[place].value
      : nodes[place].children.reduce((sum, child) => sum + share(child), 0);
  }
  function drawCrumbs() {
    const path = [];
    for (let place = nodes[root].parent; place >= 0; place = nodes[place].parent) path.unshift(place);
    const shown = path.length > 7 ? [...path.slice(0, 2), null, ...path.slice(-4)] : path;
    crumbs.replaceChildren(
      ...shown.map((place) =>
        place === null
          ? el("span", { class: "muted" }, "…")
          : el(
              "button",
              { type: "button", class: "plain", title: nodes[place].name, on: { click: () => zoom(place) } },
              frameName(nodes[place].name),
            ),
      ),
    );
    crumbs.hidden = !path.length;
  }
  function move(key) {
    const node = nodes[focus];
    if (key === "ArrowDown" && node.children.length) focus = node.children[0];
    else if (key === "ArrowUp" && focus !== root) focus = node.parent;
    else if ((key === "ArrowLeft" || key === "ArrowRight") && focus !== root) {
      const row = nodes[node.parent].children;
      focus = row[Math.min(Math.max(row.indexOf(focus) + (key === "ArrowRight" ? 1 : -1), 0), row.length - 1)];
    } else return false;
    return true;
  }
  canvas.addEventListener("keydown", (event) => {
    if (event.key === "Enter") zoom(focus);
    else if (event.key === "Escape" && nodes[root].parent >= 0) zoom(nodes[root].parent);
    else if (!move(event.key)) return;
    event.preventDefault();
    draw();
    const current = canvas.querySelector(".focus");
    if (current) current.scrollIntoView({ block: "nearest" });
  });

  const names = {
    host: "Host time",
    workers: "Workers of the loader",
    device: "Device time",
    "host, B": "B's host time",
    "host, A": "A's host time",
    "device, B": "B's device time",
    "device, A": "A's device time",
  };
  const search = el("input", {
    type: "search",
    placeholder: "Search frames",
    "aria-label": "Search frames",
    spellcheck: "false",
    on: {
      input: (event) => {
        words = event.target.value.trim().toLowerCase();
        draw();
        note();
      },
    },
  });
  const chooser = el("span");
  const chooserOf = (keys) =>
    segmented(
      "Time of",
      keys.map((key) => [key, names[key]]),
      which,
      (key) => {
        load(key);
        note();
      },
    );
  const all = () => {
    zoom(0);
    note();
  };
  const showAll = el("button", { type: "button", class: "plain", on: { click: all } }, "Show all");
  const tools = el("div", { class: "tools" }, search, matched, chooser, showAll);
  take(id ? addressOf(id) : {});
  if (id) places.set(id, take);
  const kinds = new Set(Object.values(flames).flatMap((flame) => flame.kinds.map((kind) => FRAME_KINDS[kind])));
  const colours = flames[which].before
    ? CHANGES
    : FRAME_KINDS.filter((kind) => kinds.has(kind)).map((kind) => [KIND_NAMES[kind], `k-${kind}`]);
  return el(
    "div",
    { class: "flame-box" },
    tools,
    crumbs,
    el("div", { class: "flame-scroll" }, canvas),
    detail,
    legend(colours),
  );
}
