// The choice of window and rank, and the drawing of the report.

const chosen = { window: DATA.windows.length - 1, rank: null };

// the parts of an address that select the shown window and rank
function currentPlace() {
  const window_ = DATA.windows[chosen.window];
  return {
    window: DATA.windows.length > 1 ? window_.name : null,
    rank: window_ && window_.ranks.length > 1 ? currentRank(window_).rank : null,
  };
}

// the window and rank of the address, if the report has them
function choose() {
  const { given } = readAddress();
  const place = DATA.windows.findIndex((each) => each.name === given.window);
  if (place >= 0) chosen.window = place;
  if (/^\d+$/.test(given.rank || "")) chosen.rank = Number(given.rank);
}

function pick(place, rank) {
  if (place !== null) chosen.window = place;
  chosen.rank = rank;
  noteAddress("overview", {});
  show();
  window.scrollTo({ top: 0 });
}

function currentRank(window_) {
  const shown = Object.keys(window_.details).map(Number);
  const wanted = chosen.rank !== null ? chosen.rank : shown.length ? Math.min(...shown) : window_.ranks[0].rank;
  return window_.ranks.find((each) => each.rank === wanted) || window_.ranks[0];
}

function picker(label, options, value, choose) {
  if (options.length < 2) return null;
  const select = el(
    "select",
    { "aria-label": label, on: { change: (event) => choose(Number(event.target.value)) } },
    options.map(([key, text]) => el("option", { value: key, selected: key === value }, text)),
  );
  return el("label", null, el("span", { class: "hidden" }, label), select);
}

function drawPickers(window_, rank) {
  const windows = DATA.windows.map((each, place) => [place, windowName(each)]);
  const ranks = window_.ranks.map((each) => [each.rank, `Rank ${each.rank}`]);
  document
    .getElementById("pickers")
    .replaceChildren(
      ...[
        picker("Window", windows, chosen.window, (place) => pick(place, chosen.rank)),
        picker("Rank", ranks, rank.rank, (number) => pick(null, number)),
      ].filter(Boolean),
    );
}

function absent(window_, _, rank) {
  return el(
    "section",
    { id: "overview", class: "overview", "aria-label": "Overview" },
    heading(window_, {}, rank),
    stepTime(window_, {}, rank),
    warning(window_, {}, rank),
    el("p", { class: "good" }, rank.headline || ""),
    slowLine(),
    el(
      "p",
      { class: "muted" },
      `This report omits the details of this rank, to stay small. They are in the files ` +
        `${window_.name}/rank${rank.rank}.*`,
    ),
    (DATA.findings || []).length ? findings({}) : null,
  );
}

// the other sections must be drawn if one fails
function attempt(make, ...given) {
  try {
    return make(...given);
  } catch (error) {
    console.error(error);
    return el("p", { class: "doubt" }, `A part of this report could not be drawn: ${error}`);
  }
}

function missingLines() {
  const lost = (DATA.lost || []).map((each) => `The process ended during the recording of ${each}, so it is lost.`);
  const unread = (DATA.unread || []).map((each) => `Not in this report: ${each}`);
  return [...lost, ...unread].map((text) => el("p", { class: "doubt" }, text));
}

function menus(groups) {
  return Object.entries(groups).flatMap(([name, parts]) => {
    const sections = parts.filter((each) => each && each.id);
    if (!sections.length) return [];
    const link = (each, text) => el("a", { href: address(each.id, {}) }, text);
    const items = sections.map((each) => link(each, each.getAttribute("aria-label")));
    return el("div", { class: "menu" }, link(sections[0], name), el("div", { class: "items" }, items));
  });
}

function show() {
  const main = document.getElementById("main");
  if (!DATA.windows.length) {
    const parts = [
      el(
        "section",
        { id: "overview", class: "overview" },
        el("h1", null, DATA.title),
        el("p", { class: "good" }, "This run has no finished window yet."),
        slowLine(),
        missingLines(),
      ),
      attempt(slowSection),
    ];
    main.replaceChildren(...parts.filter(Boolean));
    return;
  }
  const window_ = DATA.windows[chosen.window];
  const rank = currentRank(window_);
  const details = withExplanation(window_, window_.details[String(rank.rank)]);
  const missing = missingLines();
  if (DATA.windows_count) {
    const some = `The latest ${DATA.windows.length} of ${DATA.windows_count} windows are in this report`;
    missing.push(el("p", { class: "muted" }, `${some}; the files of all are in the run folder.`));
  }
  places.clear();
  moduleNames.clear();
  for (const row of rowsOf(((details || {}).modules || {}).rows))
    if (known(row.qualified_name)) moduleNames.set(`nn.Module: ${row.name}`, row.qualified_name);
  const ofRun = (...makers) => makers.map((make) => attempt(make, window_, rank));
  const ofWindow = (...makers) => (details ? makers.map((make) => attempt(make, details, rank)) : []);
  const groups = {
    Steps: [
      attempt(details ? overview : absent, window_, details || {}, rank),
      ...missing,
      ...ofWindow(labelsSection),
      ...ofRun(timelineSection, slowSection),
      ...ofWindow(stepsSection),
      ...ofRun(windowsSection, ranksSection, startupSection),
    ],
    Work: ofWindow(
      categoriesSection,
      operatorsSection,
      kernelsSection,
      deviceSection,
      gapsSection,
      memorySection,
      communicationSection,
      planSection,
      workersSection,
    ),
    Code: ofWindow(flameSection, functionsSection, modulesSection, compiledSection),
    Trust: ofWindow(checksSection),
  };
  main.replaceChildren(...Object.values(groups).flat().filter(Boolean));
  drawPickers(window_, rank);
  document.getElementById("nav").replaceChildren(...menus(groups));
  document.title = `${DATA.title} · perfhooks`;
  drawFigures().then(() => {
    document.body.dataset.ready = "yes";
  });
}

for (const query of ["(prefers-color-scheme: dark)", "print"])
  window.matchMedia(query).addEventListener("change", drawFigures);
window.addEventListener("hashchange", () => {
  const before = { ...chosen };
  choose();
  if (before.window !== chosen.window || before.rank !== chosen.rank) show();
  goTo();
});
choose();
show();
goTo();
