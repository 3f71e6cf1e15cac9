// The explorer: controls, images and the strip of outputs, all drawn from one state.
"use strict";

(() => {
  const root = document.getElementById("explorer");
  if (!root) return;
  const stored = JSON.parse(document.getElementById("stored").textContent);
  const found = model(stored);
  const part = (name) => root.querySelector(`[data-part="${name}"]`);
  const T = found.rounds;
  const ALPHAS = [
    0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.06, 0.08,
    0.1, 0.125, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5,
  ];
  const tausOf = (task) => {
    const [low, high] = outputSpan(task);
    return Array.from({ length: 100 }, (_, i) =>
      Number((((i + 1) / 100) * (high - low)).toPrecision(6)));
  };
  const words = stored.words;
  const titled = (word) => word.slice(0, 1).toUpperCase() + word.slice(1);
  const NAMES = {
    estimate: titled(words.estimate), mean: "Posterior mean", sd: "Standard deviation",
    error: "Error of the mean", point: "Point estimate", truth: titled(words.reference),
  };
  const { paint, blank, isHeat, samples } = pictures(stored);
  const views = [...stored.tiles.filter((t) => !t.startsWith("sample-")), ...samples,
    ...(samples.length > 1 ? ["samples", "ends"] : []), "truth"];
  const WITHIN = { all: `all ${words.cases} together`, class: "each class" };
  const others = stored.slices.map((_, i) => `case-${i}`);
  const compared = [...views.filter((view) => !/^sample|^ends/.test(view)), ...others];

  const initial = {
    slice: 0, round: 0, alpha: stored.alpha, tau: stored.tau,
    score: Object.keys(stored.score_names).includes("mlwr") ? "mlwr" : "lwr",
    policy: Object.keys(stored.policies)[0], unit: stored.unit, within: stored.within,
    task: 0, view: "mean", compare: "truth",
  };
  let state = { ...initial, ...fromHash() };

  function outputSpan(task) {
    const { range } = stored.tasks[task];
    if (range && range.every((v) => Number.isFinite(v))) return range;
    const all = stored.slices.flatMap((s) => [s.targets[task], ...s.outputs[task].flat()]);
    const low = Math.min(...all);
    const high = Math.max(...all);
    return high > low ? [low, high] : [low - 0.5, high + 0.5];
  }

  // A link restores the view; impossible values are ignored.
  function fromHash() {
    const asked = new URLSearchParams(location.hash.slice(1));
    const wanted = {};
    const whole = (name, count) => {
      const value = Number(asked.get(name));
      if (asked.has(name) && Number.isInteger(value) && value >= 0 && value < count) {
        wanted[name] = value;
      }
    };
    whole("slice", stored.slices.length);
    whole("round", T);
    whole("task", stored.tasks.length);
    if (validAlpha(asked.get("alpha"))) wanted.alpha = String(Number(asked.get("alpha")));
    const widths = (asked.get("tau") ?? "").split(",");
    if (widths.every(validTau) && widths.length <= stored.tasks.length) {
      wanted.tau = widths.map(Number).join(",");
    }
    const among = (name, names) => {
      if (names.includes(asked.get(name))) wanted[name] = asked.get(name);
    };
    among("score", Object.keys(stored.score_names));
    among("policy", Object.keys(stored.policies));
    among("unit", stored.units);
    among("within", Object.keys(WITHIN));
    among("view", views);
    among("compare", compared);
    return wanted;
  }
  function validAlpha(text) {
    return text !== null && text !== "" && Number(text) > 0 && Number(text) < 1;
  }
  function validTau(text) {
    return text !== null && text !== "" && Number(text) > 0 && Number.isFinite(Number(text));
  }
  function link() {
    return "#" + new URLSearchParams(state).toString();
  }

  function change(changes, isPlayed = false) {
    const isLook = Object.keys(changes).every((name) => name === "view" || name === "compare");
    if (!isPlayed && !isLook) play.reset();
    state = { ...state, ...changes };
    draw();
    history.replaceState(null, "", link());
  }

  const make = (tag, attributes = {}, text = null, space = null) => {
    const node = space ? document.createElementNS(space, tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    if (text !== null) node.textContent = text;
    return node;
  };
  const SVG = "http://www.w3.org/2000/svg";
  const svg = (tag, attributes, text = null) => make(tag, attributes, text, SVG);
  const isolated = (text) => `\u2068${text}\u2069`;

  function number(value) {
    if (value === Infinity) return "∞";
    if (value === -Infinity) return "−∞";
    // Three significant digits; only 1 itself is shown as 1.
    let text = Math.abs(value) >= 1000 ? value.toFixed(0) : String(Number(value.toPrecision(3)));
    if (text === "1" && value < 1) text = String(Number(value.toPrecision(4)));
    return text.replace("-", "−");
  }
  const pair = ([a, b]) => (a > b ? "empty" : `${number(a)} to ${number(b)}`);
  const inside = ([a, b], z) => a <= z && z <= b;
  const width = ([a, b]) => (a > b ? 0 : b - a);

  // --- controls -------------------------------------------------------------------------------
  function options(select, entries, chosen) {
    select.replaceChildren(...entries.map(([value, text]) => {
      const option = make("option", { value }, text);
      option.selected = String(value) === String(chosen);
      return option;
    }));
  }

  // The unit of the guarantee.
  function coveredUnit(unit) {
    return unit === "group" ? `a random ${words.case} of a new ${words.group}` : `a new ${words.case}`;
  }

  const groups = [...new Set(stored.slices.map((s) => s.group))];

  function setUp() {
    part("group").addEventListener("change", (event) => {
      change({ slice: stored.slices.findIndex((s) => s.group === event.target.value) });
    });
    part("slice").addEventListener("change", (event) => change({ slice: Number(event.target.value) }));
    part("previous").addEventListener("click", () => step(-1));
    part("next").addEventListener("click", () => step(1));
    part("score").addEventListener("change", (event) => change({ score: event.target.value }));
    part("policy").addEventListener("change", (event) => change({ policy: event.target.value }));
    part("unit").addEventListener("change", (event) => change({ unit: event.target.value }));
    options(part("group"), groups.map((g) => [g, isolated(g)]), null);
    part("group").closest("label").hidden = groups.length < 2;
    options(part("score"), Object.entries(stored.score_names), state.score);
    options(part("policy"), Object.entries(stored.policies).map(([key, policy]) =>
      [key, `${policy.name}${policy.guaranteed ? "" : " · no guarantee"}`]), state.policy);
    part("within").addEventListener("change", (event) => change({ within: event.target.value }));
    options(part("within"), Object.entries(WITHIN), state.within);
    part("within").closest("label").hidden = !stored.calibration_label;
    options(part("unit"), stored.units.map((u) => [u, coveredUnit(u)]), state.unit);
    part("unit").closest("label").hidden = stored.units.length < 2;
    options(part("task"), stored.tasks.map((task, k) => [k, isolated(task.name)]), state.task);
    part("task").closest("label").hidden = stored.tasks.length < 2;
    part("task").addEventListener("change", (event) => change({ task: Number(event.target.value) }));
    options(part("compare"), compared.map((name) => [name, comparedName(name)]), state.compare);
    part("compare").addEventListener("change", (event) => change({ compare: event.target.value }));
    slider("alpha", () => ALPHAS, validAlpha, (value) => value, "α must lie between 0 and 1.");
    slider("tau", () => tausOf(state.task), validTau, withTau, "τ must be a positive number.");
    for (let k = 0; k < T; k++) {
      const radio = make("input", { type: "radio", name: "explorer-round", value: k });
      radio.addEventListener("change", () => change({ round: k }));
      const label = make("label", {});
      const thumb = make("canvas", { width: 8, height: 8, "aria-hidden": "true" });
      label.append(radio, thumb, make("span", {}, stored.round_names[k]));
      part("rounds").append(label);
    }
    part("play").addEventListener("click", play.toggle);
    for (const view of views) {
      if (view.startsWith("sample-") && view !== "sample-1") continue;
      const text = { "sample-1": "Sample", samples: "All samples", ends: "Ends of the interval" }[view]
        ?? NAMES[view];
      const button = make("button", { type: "button", "data-view": view }, text);
      button.addEventListener("click", () => (view === "sample-1" ? flip(1) : change({ view })));
      part("views").append(button);
    }
    part("viewer").addEventListener("keydown", onArrow);
    root.addEventListener("keydown", onLetter);
    part("restore").addEventListener("click", (event) => {
      event.preventDefault();
      const { slice, round, view, compare, task } = state;
      change({ ...initial, slice, round, view, compare, task });
    });
    window.addEventListener("hashchange", () => {
      if (!location.hash.includes("=")) return;
      play.reset();
      state = { ...initial, ...fromHash() };
      draw();
    });
    new ResizeObserver(() => drawStrip()).observe(part("strip"));
  }

  function slider(name, values, valid, whole, rule) {
    const range = part(name);
    const exact = part(`${name}-exact`);
    range.max = values().length - 1;
    range.addEventListener("input", () =>
      change({ [name]: whole(String(values()[Number(range.value)])) }));
    exact.addEventListener("input", () => {
      if (valid(exact.value)) change({ [name]: whole(String(Number(exact.value))) });
      else refuse(name, rule);
    });
  }
  // An invalid entry has no result: the last one is withdrawn until the entry is corrected.
  function refuse(name, rule) {
    play.reset();
    root.classList.add("invalid");
    part(`${name}-exact`).setAttribute("aria-invalid", "true");
    part(`${name}-error`).textContent = rule;
    part("verdict").className = "verdict none";
    part("verdict-text").textContent = `No result: ${rule}`;
    part("guarantee").textContent = "";
  }
  function accept(name) {
    root.classList.remove("invalid");
    part(`${name}-exact`).setAttribute("aria-invalid", "false");
    part(`${name}-error`).textContent = "";
  }
  // Each task has its own width; the slider moves that of the shown task.
  const shownTau = () => String(found.widths(state.tau)[state.task]);
  function withTau(value) {
    return found.widths(state.tau).map((w, t) => (t === state.task ? value : w)).join(",");
  }
  function place(name, values, text) {
    const value = Number(text);
    const range = part(name);
    let nearest = 0;
    values.forEach((v, i) => {
      if (Math.abs(Math.log(v / value)) < Math.abs(Math.log(values[nearest] / value))) nearest = i;
    });
    range.value = nearest;
    range.setAttribute("aria-valuetext", text);
    const exact = part(`${name}-exact`);
    if (document.activeElement !== exact) exact.value = text;
  }

  function step(by) {
    const S = stored.slices.length;
    change({ slice: (state.slice + by + S) % S });
  }
  function flip(by) {
    if (!samples.length) return;
    const at = samples.indexOf(state.view);
    change({ view: samples[at < 0 ? 0 : (at + by + samples.length) % samples.length] });
  }
  function onArrow(event) {
    const keys = {
      ArrowLeft: () => change({ round: Math.max(0, state.round - 1) }),
      ArrowRight: () => change({ round: Math.min(T - 1, state.round + 1) }),
      ArrowUp: () => step(-1),
      ArrowDown: () => step(1),
      " ": () => flip(event.shiftKey ? -1 : 1),
    };
    if (!keys[event.key] || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    keys[event.key]();
  }
  function onLetter(event) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.target.closest("input[type=number], select")) return;
    const letters = {
      z: "estimate", m: "mean", d: "sd", e: "error", p: "point", t: "truth", a: "samples",
    };
    const view = letters[event.key.toLowerCase()];
    if (view && views.includes(view)) change({ view });
    else if (event.key.toLowerCase() === "s") flip(1);
  }

  // --- images ---------------------------------------------------------------------------------
  // The interval that a round would report: of the score, or the window of a policy by risk.
  const usesScore = () => !stored.policies[state.policy].statistic;
  const intervalAt = (k) => (usesScore() ? answer.rounds[k].interval : answer.rounds[k].report);
  const outputsAt = (k) => stored.slices[state.slice].outputs[state.task][k];
  const isOutside = (k, j) => !inside(intervalAt(k), outputsAt(k)[j]);

  function viewName(view) {
    if (view === "samples") return `All ${samples.length} stored samples`;
    if (view === "ends") return "Samples at the ends of the interval";
    return view.startsWith("sample-") ? `Sample ${view.slice(7)} of ${samples.length}` : NAMES[view];
  }
  function sampleNote(view) {
    if (view === "samples") {
      const count = samples.filter((_, j) => isOutside(state.round, j)).length;
      return count ? `; framed: ${count} outside the interval` : "; all inside the interval";
    }
    if (!view.startsWith("sample-")) return "";
    const j = Number(view.slice(7)) - 1;
    return `, output ${number(outputsAt(state.round)[j])}`
      + (isOutside(state.round, j) ? ", outside the interval" : "");
  }
  function comparedName(name) {
    if (!name.startsWith("case-")) return viewName(name);
    return `${titled(words.case)} ${isolated(stored.slices[Number(name.slice(5))].case)}`;
  }
  const at = (view) => (view === "truth" ? "" : ` at ${stored.round_names[state.round]}`);
  function drawOne(name, slice, view, text) {
    const { case: called, doubt } = stored.slices[slice];
    part(name).setAttribute("aria-label", `${viewName(view)}${at(view)}, ${called}`);
    part(`${name}-name`).textContent = text;
    const legend = part(`${name}-heat`);
    legend.hidden = !isHeat(view);
    legend.lastElementChild.textContent = number(doubt);
    const marked = [...samples.keys()].filter((j) => isOutside(state.round, j));
    paint(part(name), slice, state.round, view, marked);
  }
  // The stored sample whose output is nearest to an end; the most extreme one if that is infinite.
  function sampleAt(end) {
    const outputs = outputsAt(state.round).slice(0, samples.length);
    const far = outputs.map((v) => (Number.isFinite(end) ? Math.abs(v - end) : -Math.sign(end) * v));
    return samples[far.indexOf(Math.min(...far))];
  }
  function drawEnds() {
    const [low, high] = intervalAt(state.round);
    for (const [name, end, called] of [["picture", low, "Lower"], ["second", high, "Upper"]]) {
      const view = sampleAt(end);
      drawOne(name, state.slice, view,
        `${called} end ${number(end)}: sample ${view.slice(7)}${sampleNote(view)}`);
    }
  }
  function drawPictures() {
    if (state.view === "ends") {
      drawEnds();
    } else {
      drawOne("picture", state.slice, state.view,
        viewName(state.view) + at(state.view) + sampleNote(state.view));
    }
    if (state.compare.startsWith("case-") && state.view !== "ends") {
      const other = Number(state.compare.slice(5));
      drawOne("second", other, state.view, `${isolated(stored.slices[other].case)}: ${outcome(other)}`);
    } else if (state.view !== "ends") {
      drawOne("second", state.slice, state.compare, viewName(state.compare) + at(state.compare));
    }
    const film = ["truth", "samples", "ends"].includes(state.view) ? "mean" : state.view;
    part("rounds").querySelectorAll("canvas").forEach((thumb, k) =>
      paint(thumb, state.slice, k, film));
    for (const button of part("views").children) {
      const mine = button.dataset.view;
      const one = mine === "sample-1" && state.view.startsWith("sample-");
      button.setAttribute("aria-pressed", String(mine === state.view || one));
    }
  }
  // The outcome of another case's scan, in a few words.
  function outcome(slice) {
    const other = found.at({ ...state, slice });
    const truth = stored.slices[slice].targets[state.task];
    const stopped = other.rounds[other.stop];
    if (!stopped) return `measured in full, ${number(truth)}`;
    return `stops at ${stored.round_names[other.stop]} with ${pair(stopped.report)}; truth `
      + `${number(truth)} ${inside(stopped.report, truth) ? "inside" : "outside"}`;
  }

  // --- playing a scan -------------------------------------------------------------------------
  const play = player(stored, {
    part,
    shown: () => stored.slices[state.slice],
    caption: (text) => { part("played").textContent = text; },
    redraw: () => draw(),
    playing: (on) => {
      root.dataset.playing = String(on);
      part("play").textContent = on ? "Stop playing" : "Play the scan";
      part("play").setAttribute("aria-pressed", String(on));
      if (on) blank(part("picture"));
    },
    show: (k) => {
      change(k < T ? { round: k, view: "mean" } : { view: "truth" }, true);
      if (k === T) return { ends: true, sentence: "The full scan yields the truth." };
      const { report } = answer.rounds[k];
      const ends = k === answer.stop;
      return {
        ends,
        sentence: `${stored.round_names[k]}: ` + (ends
          ? `${pair(report)}. Certain enough: the scan stops.`
          : "not certain enough, no report yet."),
      };
    },
  });

  // --- the strip of outputs -------------------------------------------------------------------
  let answer = null;
  function drawStrip() {
    if (!answer) return;
    const box = part("strip");
    const slice = stored.slices[state.slice];
    const wide = Math.max(260, box.clientWidth);
    const longest = Math.max(...stored.round_names.map((name) => name.length));
    const left = Math.min(Math.max(58, 16 + 7 * longest), wide / 3);
    const right = 14;
    const row = 56;
    const high = T * row + 44;
    const outputs = slice.outputs[state.task];
    const target = slice.targets[state.task];
    const { range } = stored.tasks[state.task];
    const all = [target, ...outputs.flat()];
    const ends = answer.rounds.flatMap((r, k) => [...intervalAt(k), ...(r.stops ? r.report : [])])
      .filter(Number.isFinite);
    const bounded = range && range.every((v) => Number.isFinite(v));
    // One scale for all rounds, between round numbers.
    const ticks = niceTicks(Math.min(...all, ...ends), Math.max(...all, ...ends), wide < 480 ? 4 : 6);
    const low = bounded ? Math.max(range[0], ticks[0]) : ticks[0];
    const top = bounded ? Math.min(range[1], ticks.at(-1)) : ticks.at(-1);
    const pad = (top - low) * 0.02;
    const x = (v) => left + ((Math.min(Math.max(v, low - pad), top + pad) - low + pad)
      / (top - low + 2 * pad)) * (wide - left - right);
    const chart = svg("svg", { viewBox: `0 0 ${wide} ${high}`, width: wide, height: high,
      role: "img", "aria-label": stripText() });
    for (const v of ticks.filter((t) => t >= low - pad && t <= top + pad)) {
      chart.append(svg("path", { class: "grid", d: `M${x(v)} 4V${T * row + 4}` }));
      chart.append(svg("text", { class: "tick", x: x(v), y: T * row + 22, "text-anchor": "middle" },
        number(v)));
    }
    chart.append(svg("text", { class: "tick", x: left + (wide - left - right) / 2, y: T * row + 40,
      "text-anchor": "middle" }, stored.tasks.length > 1 ? stored.tasks[state.task].name : "task output"));
    answer.rounds.forEach((round, k) => {
      const y = k * row + 4;
      const group = svg("g", { class: `round${k === state.round ? " current" : ""}`
        + `${k > answer.stop ? " later" : ""}` });
      group.append(svg("rect", { class: "bed", x: 0, y: y + 2, width: wide, height: row - 4, rx: 6 }));
      const lift = k === answer.stop ? -4 : 4;
      group.append(svg("text", { class: "name", x: 10, y: y + row / 2 + lift },
        stored.round_names[k]));
      const [a, b] = intervalAt(k);
      if (a <= b && (usesScore() || !round.stops)) {
        group.append(svg("rect", { class: usesScore() ? "interval" : "window", x: x(a),
          y: y + (usesScore() ? 12 : 36), width: Math.max(x(b) - x(a), 1.5), height: 8, rx: 4 }));
      }
      const [c, d] = round.report;
      if (round.stops && c <= d) {
        group.append(svg("rect", { class: "report", x: x(c), y: y + 36,
          width: Math.max(x(d) - x(c), 1.5), height: 8, rx: 4 }));
      }
      for (const [j, v] of outputs[k].entries()) {
        // A fixed scatter keeps dots apart.
        group.append(svg("circle", { class: `dot${isOutside(k, j) ? " outside" : ""}`, cx: x(v),
          cy: y + 28 + ((j * 7) % 5) - 2, r: 2.6 }));
      }
      if (slice.point) {
        group.append(svg("path", { class: "point",
          d: `M${x(slice.point[state.task][k])} ${y + 22}l5 6l-5 6l-5 -6z` }));
      }
      if (k === answer.stop) {
        group.append(svg("text", { class: "stop", x: 10, y: y + row / 2 + 12 }, "stop"));
      }
      group.addEventListener("click", () => change({ round: k }));
      chart.append(group);
    });
    chart.append(svg("path", { class: "target", d: `M${x(target)} 2V${T * row + 6}` }));
    box.replaceChildren(chart);
  }
  function niceTicks(low, high, wanted) {
    const span = high - low || 1;
    const power = 10 ** Math.floor(Math.log10(span / wanted));
    const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= span / wanted);
    const first = Math.floor(low / step + 1e-9);
    const last = Math.max(Math.ceil(high / step - 1e-9), first + 1);
    return Array.from({ length: last - first + 1 }, (_, i) =>
      Number(((first + i) * step).toPrecision(12)));
  }
  function stripText() {
    const target = stored.slices[state.slice].targets[state.task];
    const rounds = answer.rounds.map((_, k) =>
      `${stored.round_names[k]}: interval ${pair(intervalAt(k))}`).join("; ");
    return `Task outputs and intervals of each round. Truth ${number(target)}. ${rounds}.`;
  }

  // --- words and numbers ----------------------------------------------------------------------
  function drawWords() {
    const target = stored.slices[state.slice].targets[state.task];
    const stopped = answer.rounds[answer.stop];
    const policy = stored.policies[state.policy];
    const verdict = part("verdict");
    let text;
    let kind = "full";
    if (stopped) {
      const hit = inside(stopped.report, target);
      kind = hit ? "hit" : "miss";
      text = `The scan stops at ${stored.round_names[answer.stop]} and reports `
        + `${pair(stopped.report)}, width ${number(width(stopped.report))}. The truth, `
        + `${number(target)}, is ${hit ? "inside" : "outside"}.`;
    } else {
      text = "No round is certain enough: the scan is measured in full, which yields the truth, "
        + `${number(target)}.`;
    }
    verdict.className = `verdict ${kind}`;
    part("verdict-text").textContent = text;
    const unit = answer.unit === "group" ? words.groups : words.cases;
    const share = number(1 - Number(state.alpha));
    const short = answer.least < answer.needed - 1e-9;
    const isByClass = answer.within === "class";
    const who = coveredUnit(answer.unit);
    if (short) {
      const there = isByClass ? `the smallest class is worth ${number(answer.least)}`
        : `there are ${answer.units}`;
      part("guarantee").textContent = `α = ${state.alpha} needs at least ${answer.needed} calibration `
        + `${unit}, ${there}: intervals are the whole range, and no scan stops early.`;
    } else if (policy.guaranteed) {
      const what = stored.tasks.length > 1 ? "reports of all tasks of" : "report of";
      const holds = stored.tasks.length > 1 ? "contain their targets" : "contains its target";
      part("guarantee").textContent = `Guaranteed${isByClass ? " within each class" : ""}: `
        + `the ${what} ${who} ${holds} with probability at least ${share}, if it is `
        + `exchangeable with the ${answer.units} calibration ${unit} and the settings were fixed `
        + "before looking.";
    } else {
      part("guarantee").textContent = "Measured, not guaranteed: each round alone has its error rate, "
        + "but a report selected by its width may miss the truth more often.";
    }
    part("tau-note").textContent = `stop at ${shownTau()} or less`;
    const isRanked = usesScore() && answer.rank !== null;
    part("alpha-note").textContent = isRanked
      ? `q̂ is score ${answer.rank} of ${answer.scoreUnits}`
        + (answer.rank > answer.scoreUnits ? ": too few units" : "")
      : `${usesScore() ? "q̂" : "limit"} from ${usesScore() ? answer.scoreUnits : answer.units} ${unit}`;
    const yes = (interval) => (inside(interval, target) ? "yes" : "no");
    // A policy by risk does not use the intervals of the score.
    const columns = usesScore() ? {
      quantile: ["quantile q̂", (r) => number(r.quantile)],
      interval: ["interval", (r) => pair(r.interval)],
      width: ["width", (r) => number(width(r.interval))],
      covered: ["contains the truth", (r) => yes(r.interval)],
      report: ["report at the stop", (r) => (r.stops ? pair(r.report) : "–")],
    } : {
      risk: ["risk", (r) => number(r.risk)],
      limit: ["stop below", (r) => number(-r.threshold)],
      report: ["report at the stop", (r) => (r.stops ? pair(r.report) : "–")],
      width: ["width", (r) => (r.stops ? number(width(r.report)) : "–")],
      covered: ["contains the truth", (r) => (r.stops ? yes(r.report) : "–")],
    };
    const heads = [titled(words.round), ...Object.values(columns).map(([head]) => head), "decision"];
    part("heads").replaceChildren(...heads.map((head, i) =>
      make("th", { scope: "col", ...(i ? {} : { class: "text" }) }, head)));
    const rows = answer.rounds.map((round, k) => {
      const row = make("tr", {
        "data-round": k, "data-lower": round.interval[0], "data-upper": round.interval[1],
        "data-quantile": round.quantile, "data-threshold": round.threshold,
        "data-report-lower": round.report[0], "data-report-upper": round.report[1],
        "data-stops": round.stops,
      });
      if (k === state.round) row.className = "current";
      row.append(make("th", { scope: "row" }, stored.round_names[k]));
      row.append(...Object.entries(columns).map(([name, [, text]]) =>
        make("td", { "data-cell": name }, text(round))));
      row.append(make("td", {}, k === answer.stop ? "stop" : round.stops ? "could stop" : "continue"));
      return row;
    });
    part("numbers").replaceChildren(...rows);
    part("link").setAttribute("href", link());
  }

  function draw() {
    const slice = stored.slices[state.slice];
    answer = found.at(state);
    root.dataset.stop = answer.stop;
    ["alpha", "tau"].forEach(accept);
    const { score_colours: colours, policies } = stored;
    root.style.setProperty("--score", `var(--c${colours[state.score]})`);
    root.style.setProperty("--policy",
      `var(--c${policies[state.policy].colour ?? colours[state.score]})`);
    root.dataset.intervals = usesScore() ? "score" : "window";
    part("score").disabled = !usesScore();
    part("score-note").textContent = usesScore() ? "" : "not used by this policy";
    part("group").value = slice.group;
    const mine = stored.slices.map((s, i) => [i, s]).filter(([, s]) => s.group === slice.group);
    options(part("slice"), mine.map(([i, s]) =>
      [i, isolated(s.case) + (s.label === null ? "" : ` (${isolated(s.label)})`)]), state.slice);
    part("score").value = state.score;
    part("policy").value = state.policy;
    part("unit").value = state.unit;
    part("within").value = state.within;
    for (const radio of part("rounds").querySelectorAll("input")) {
      radio.checked = Number(radio.value) === state.round;
    }
    part("task").value = state.task;
    part("compare").value = state.compare;
    place("alpha", ALPHAS, state.alpha);
    place("tau", tausOf(state.task), shownTau());
    drawPictures();
    drawStrip();
    drawWords();
  }

  setUp();
  draw();
  root.hidden = false;
  // The numbers, for tests and for the console.
  window.taskuqExplorer = { at: (asked) => found.at({ ...state, ...asked }), state: () => ({ ...state }) };
})();
