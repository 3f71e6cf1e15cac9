// A scan as it is acquired: line by line within a round, a decision after it, until it stops.
"use strict";

const player = (stored, explorer) => {
  const TICK = 28;
  const TICKS = 24;
  const PAUSE = 900;
  const T = stored.accelerations.length;
  const isStill = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
  let timer = null;
  let measured = [];

  // Lines may have been chosen for each slice, or be the same for all. Without either only shares
  // are known: then a hundredth stands for a line.
  let known = stored.lines;
  let all = 100;
  const noun = () => (known ? stored.words.measurements : "% of the measurement");
  function added(round) {
    if (known && round < T) return known.new[round];
    const share = round < T ? Math.round(all / stored.accelerations[round]) : all;
    const missing = Array.from({ length: all }, (_, i) => i).filter((i) => !measured.includes(i));
    return known ? missing : missing.slice(0, Math.max(0, share - measured.length));
  }
  function amount() {
    return known ? `${measured.length} of ${all} ${noun()}` : `${measured.length} ${noun()}`;
  }

  function draw(fresh) {
    const canvas = explorer.part("acquired");
    canvas.width = all;
    canvas.height = 1;
    const context = canvas.getContext("2d");
    const style = getComputedStyle(canvas);
    for (const line of measured) {
      context.fillStyle = style.getPropertyValue(fresh.includes(line) ? "--c1" : "--c0");
      context.fillRect(line, 0, 1, 1);
    }
    canvas.dataset.measured = measured.length;
    canvas.setAttribute("aria-label", `Measured so far: ${amount()}`);
  }

  const later = (step, wait) => { timer = setTimeout(step, wait); };

  function round(k) {
    const lines = added(k);
    const before = [...measured];
    const step = (count) => {
      const fresh = lines.slice(0, count);
      measured = [...before, ...fresh];
      draw(fresh);
      if (count < lines.length && !isStill) {
        const more = Math.max(1, Math.ceil(lines.length / TICKS));
        later(() => step(Math.min(lines.length, count + more)), TICK);
      } else {
        measured = [...before, ...lines];
        draw(lines);
        decide(k);
      }
    };
    step(0);
  }

  function decide(k) {
    const told = explorer.show(k);
    explorer.say(`${amount()}. ${told.sentence}`);
    if (told.ends) finish();
    else later(() => round(k + 1), PAUSE);
  }

  function finish() {
    clearTimeout(timer);
    timer = null;
    explorer.playing(false);
  }

  function toggle() {
    if (timer !== null) {
      finish();
      explorer.say("");
      return;
    }
    measured = [];
    known = explorer.shown().lines || stored.lines;
    all = known ? known.all : 100;
    explorer.playing(true);
    explorer.part("acquired").hidden = false;
    explorer.say("Nothing is measured yet.");
    draw([]);
    later(() => round(0), isStill ? 0 : PAUSE / 3);
  }
  return { toggle, stop: () => { if (timer !== null) finish(); } };
};
