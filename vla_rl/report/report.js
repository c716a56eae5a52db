// Charts, the list of episodes and its player, and videos that run while they are seen. All text is set as text, so that
// no name in a run can become markup.
const colors = ["--policy", "--control-0", "--control-1", "--control-2", "--control-3", "--control-4"];
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const color = number => css(colors[number % colors.length]);
const data = element => JSON.parse(element.querySelector("script").textContent);
const short = value => value == null ? "–" : Math.abs(value) >= 1e4 || (value && Math.abs(value) < 1e-3)
  ? value.toExponential(1) : String(+value.toPrecision(4));
const percent = value => value == null ? "–" : `${+(100 * value).toFixed(1)} %`;

function make(tag, properties, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

function axes(axis, format, whole) {
  const look = { stroke: () => css("--muted"), grid: { stroke: () => css("--rule"), width: 1 }, ticks: { show: false } };
  const named = axis ? { label: axis, labelSize: 22, size: 34 } : { size: 24 };
  return [{ ...look, ...named, ...(whole && { incrs: [1, 2, 5, 10, 20, 50, 100] }) }, { ...look, size: 54, values: (_, values) => values.map(format) }];
}

// Draws into an element as wide as it is, now and later.
function plot(element, height, options, table) {
  const drawn = new uPlot({ width: element.clientWidth || 320, height, ...options }, table, element);
  new ResizeObserver(() => element.clientWidth && drawn.setSize({ width: element.clientWidth, height })).observe(element);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.redraw());
  return drawn;
}

function drawChart(figure) {
  const chart = data(figure), format = chart.percent ? percent : short, rate = [0, 1];
  const aside = (_, low, high) => [low, high + 0.1];  // room for an interval at the last round
  const tables = [], series = [{ label: chart.axis, value: (_, value) => short(value) }], bands = [], whiskers = [];
  for (const line of chart.lines) {
    const stroke = () => color(line.color), points = { show: line.look === "points" || line.x.length < 13, size: 7 };
    const place = series.push({
      label: line.label, stroke, width: 2, points, value: (_, value) => format(value),
      dash: line.look === "dashed" ? [5, 4] : undefined, paths: line.look === "points" ? () => null : undefined,
    }) - 1;
    tables.push([line.x, line.y, ...(line.low ? [line.high, line.low] : [])]);
    if (!line.low) continue;
    const end = { stroke: () => "transparent", points: { show: false }, class: "band" };
    series.push({ label: "to", ...end }, { label: "from", ...end });
    if (line.look === "points") whiskers.push([place, stroke]);
    else bands.push({ series: [place + 1, place + 2], fill: () => `color-mix(in srgb, ${stroke()} 16%, transparent)` });
  }
  const rounds = u => vertical(u, chart.rounds || [], css("--muted"), [2, 4]);
  const ends = u => whiskers.forEach(([place, stroke]) => u.data[0].forEach((x, index) => {
    if (u.data[place][index] == null) return;
    stripe(u, x, u.data[place + 1][index], u.data[place + 2][index], stroke());
  }));
  if (chart.title) figure.append(make("figcaption", { textContent: chart.title }));
  plot(figure, chart.square ? 340 : chart.percent ? 300 : 190, {
    series, bands, axes: axes(chart.axis, format, chart.whole), cursor: { points: { size: 6 } }, hooks: { draw: [rounds, ends] },
    scales: { x: { time: false, ...(chart.square && { range: rate }), ...(chart.whole && { range: aside }) },
      y: chart.percent ? { range: rate } : { distr: chart.logarithmic ? 3 : 1 } },
  }, uPlot.join(tables));
}

function stripe(u, x, low, high, stroke, dash = []) {
  const [px, from, to] = [u.valToPos(x, "x", true), u.valToPos(low, "y", true), u.valToPos(high, "y", true)];
  if (px < u.bbox.left || px > u.bbox.left + u.bbox.width) return;
  u.ctx.save();
  u.ctx.strokeStyle = stroke;
  u.ctx.setLineDash(dash);
  u.ctx.beginPath();
  u.ctx.moveTo(px, from);
  u.ctx.lineTo(px, to);
  u.ctx.stroke();
  u.ctx.restore();
}

const vertical = (u, places, stroke, dash) => places.forEach(x => stripe(u, x, u.scales.y.min, u.scales.y.max, stroke, dash));

// The list of episodes: filters, a table that sorts by its heads, and the player of the chosen one.
const columns = ["run", "id", "kind", "version", "outcome", "steps", "person", "seed"];
const MOST_ROWS = 300;

function listEpisodes(root) {
  const { runs, rows } = data(root), shown = columns.filter(name => name !== "run" || runs.length > 1);
  const chosen = {}, filters = make("div", { className: "filters" }), player = make("div", { className: "player-panel" });
  const counted = make("p", { className: "note" }), body = make("tbody"), head = make("tr");
  let order = null, falling = false;
  const select = (name, values, label) => {
    if (values.length < 2) return;
    const box = make("select", { ariaLabel: label }, make("option", { value: "", textContent: label }));
    box.append(...values.map(value => make("option", { value, textContent: value })));
    box.onchange = () => { chosen[name] = box.value; list(); };
    filters.append(box);
  };
  for (const [name, label] of [["run", "all runs"], ["kind", "all kinds"], ["outcome", "all outcomes"],
    ["version", "all versions"], ["task", "all tasks"]]) {
    select(name, [...new Set(rows.map(row => String(row[name])))], label);
  }
  select("person", ["with a takeover", "without a takeover"], "with or without a takeover");
  const search = make("input", { type: "search", placeholder: "name or seed", ariaLabel: "name or seed" });
  search.oninput = list;
  filters.append(search);
  for (const name of shown) {
    const button = make("button", { type: "button", textContent: name === "person" ? "steps of a person" : name });
    button.onclick = () => { falling = order === name && !falling; order = name; list(); };
    head.append(make("th", {}, button));
  }
  const fits = row => Object.entries(chosen).every(([name, value]) => !value || (name === "person"
    ? (row.person > 0) === (value === "with a takeover") : String(row[name]) === value));

  function list() {
    const wanted = search.value.trim();
    const found = rows.filter(row => fits(row) && (row.id.includes(wanted) || String(row.seed) === wanted));
    if (order) found.sort((a, b) => (falling ? -1 : 1) * (a[order] > b[order] ? 1 : a[order] < b[order] ? -1 : 0));
    const successes = found.filter(row => row.outcome === "success").length;
    counted.textContent = `${found.length} of ${rows.length} episodes, ${successes} successes`
      + (found.length > MOST_ROWS ? `; the first ${MOST_ROWS} are shown, filter to see others` : "");
    body.replaceChildren(...found.slice(0, MOST_ROWS).map(row => {
      const line = make("tr", { className: row.curves ? "plays" : "" });
      line.append(...shown.map(name => make("td", { className: name === "outcome" ? row.outcome : "" },
        name === "id" && row.curves ? make("button", { type: "button", textContent: row.id }) : String(row[name] ?? "–"))));
      if (row.curves) line.onclick = () => {
        body.querySelector(".chosen")?.classList.remove("chosen");
        line.classList.add("chosen");
        play(player, row);
      };
      return line;
    }));
  }
  const table = make("table", {}, make("thead", {}, head), body);
  root.append(filters, counted, make("div", { className: "list", tabIndex: 0, role: "group", ariaLabel: "episodes" }, table), player);
  list();
  body.querySelector(".plays")?.click();
}

function unpack(panel, steps) {
  const bytes = Uint8Array.from(atob(panel.data), letter => letter.charCodeAt(0)), view = new DataView(bytes.buffer);
  return panel.names.map((_, line) => Array.from({ length: steps }, (_, step) => {
    const value = view.getUint16(2 * (line * steps + step), true);
    return value === 65535 ? null : panel.from + value / 65534 * (panel.to - panel.from);
  }));
}

let stopPlaying = () => {};

function play(root, row) {
  stopPlaying();
  const { at, hz, source, falls, panels } = row.curves, last = at[at.length - 1];
  const title = make("h3", { textContent: `${row.id}: ${row.outcome} after ${row.steps} steps` });
  const slider = make("input", { type: "range", min: 0, max: at.length - 1, value: 0, ariaLabel: "step" });
  const button = make("button", { type: "button", textContent: "Play" }), words = make("output");
  const film = make("div", { className: "film" }), curves = make("div", { className: "curves" });
  const who = make("p", { className: "note", textContent: row.task });
  if (falls != null && falls < row.steps) who.textContent += ` The chance of success falls at step ${falls}.`;
  if (row.film) {
    film.style.aspectRatio = `${row.film.width} / ${row.film.height}`;
    film.style.backgroundImage = `url("${row.film.image}")`;
    film.style.backgroundSize = `100% ${100 * row.film.at.length}%`;
    film.title = `cameras: ${row.film.cameras.join(", ")}`;
  }
  const note = row.film ? "" : "The film of this episode is not on this page.";
  root.replaceChildren(title, who, ...(row.film ? [film] : [make("p", { className: "missing", textContent: note })]),
    make("div", { className: "controls" }, button, slider, words), curves);
  const shades = { human: "--human", demo: "--demo", hold: "--hold" };
  const shade = u => source.filter(([name]) => shades[name]).forEach(([name, start, end]) => {
    const left = Math.max(u.valToPos(start - 0.5, "x", true), u.bbox.left);
    const right = Math.min(u.valToPos(end - 0.5, "x", true), u.bbox.left + u.bbox.width);
    u.ctx.fillStyle = `color-mix(in srgb, ${css(shades[name])} 22%, transparent)`;
    if (right > left) u.ctx.fillRect(left, u.bbox.top, right - left, u.bbox.height);
  });
  const drawn = panels.map(panel => {
    const figure = make("figure", { className: "chart" }, make("figcaption", { textContent: panel.title }));
    curves.append(figure);
    const solid = panel.dashed_from ?? panel.names.length;
    const series = [{ label: "step" }, ...panel.names.map((label, index) => ({
      label, stroke: () => color(solid > 1 ? index % solid : index), width: 1.6, points: { show: false },
      dash: index < solid ? undefined : [5, 3], value: (_, value) => short(value),
    }))];
    const range = (_, low, high) => {
      const margin = 0.06 * (high - low) || 0.1;
      return [panel.low ?? low - margin, panel.high ?? high + margin];
    };
    return plot(figure, 170, {
      series, axes: axes("", short), scales: { x: { time: false }, y: { range } }, hooks: { drawClear: [shade] },
      cursor: { sync: { key: "episode" } },
    }, [at, ...unpack(panel, at.length)]);
  });
  function show(index) {
    slider.value = index;
    const step = at[index], acting = source.find(([, start, end]) => start <= step && step < end);
    words.textContent = `step ${step} of ${last}, ${(step / hz).toFixed(2)} s, ${acting ? acting[0] : ""}`;
    for (const u of drawn) {
      u.setCursor({ left: u.valToPos(step, "x"), top: 0 }, false);
      u.setLegend({ idx: index }, false);
    }
    if (!row.film) return;
    const nearest = row.film.at.reduce((best, value, frame) => Math.abs(value - step) < Math.abs(row.film.at[best] - step) ? frame : best, 0);
    film.style.backgroundPosition = `0 ${row.film.at.length > 1 ? 100 * nearest / (row.film.at.length - 1) : 0}%`;
  }
  for (const u of drawn) u.over.addEventListener("click", () => u.cursor.idx == null || show(u.cursor.idx));
  let timer = 0;
  const stop = () => { clearInterval(timer); timer = 0; button.textContent = "Play"; };
  stopPlaying = () => { stop(); drawn.forEach(u => u.destroy()); };
  button.onclick = () => {
    if (timer) return stop();
    if (+slider.value >= at.length - 1) show(0);
    button.textContent = "Pause";
    timer = setInterval(() => +slider.value < at.length - 1 ? show(+slider.value + 1) : stop(), 1000 / hz * (at[1] - at[0] || 1));
  };
  slider.oninput = () => { stop(); show(+slider.value); };
  show(0);
}

document.querySelectorAll("figure.chart").forEach(drawChart);
document.querySelectorAll(".episodes").forEach(listEpisodes);

// Videos run while they are seen, unless a person pauses them or prefers less motion. Those of a pair run together.
const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
const seen = new IntersectionObserver(entries => {
  for (const { target, isIntersecting } of entries) {
    target.dataset.seen = isIntersecting ? "1" : "";
    if (!isIntersecting) target.pause();
    else if (!still && !target.dataset.held) target.play().catch(() => {});
  }
}, { threshold: 0.4 });

for (const video of document.querySelectorAll("video")) {
  const pair = video.closest(".pair"), others = pair ? [...pair.querySelectorAll("video")].filter(other => other !== video) : [];
  video.addEventListener("pause", () => {
    if (!video.dataset.seen) return;
    video.dataset.held = "1";
    others.forEach(other => other.pause());
  });
  video.addEventListener("play", () => {
    video.dataset.held = "";
    others.forEach(other => other.paused && other.play().catch(() => {}));
  });
  video.addEventListener("seeked", () => others.forEach(other => {
    if (Math.abs(other.currentTime - video.currentTime) > 0.15) other.currentTime = video.currentTime;
  }));
  seen.observe(video);
}
