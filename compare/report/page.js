// The interactive figures of a report: similarity matrices and curves that share one moment of time.
// Plain JavaScript; nothing is loaded, and text from users only ever becomes text nodes.
"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const SVG = "http://www.w3.org/2000/svg";

  function make(tag, attributes = {}, text = null, namespace = null) {
    const element = namespace ? document.createElementNS(namespace, tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text !== null) element.textContent = text;
    return element;
  }

  // ---------------------------------------------------------------- theme

  const themes = ["automatic", "light", "dark"];
  function setUpTheme() {
    const button = byId("theme");
    let current = 0;
    button.hidden = false;
    button.addEventListener("click", () => {
      current = (current + 1) % themes.length;
      if (current) document.documentElement.dataset.theme = themes[current];
      else delete document.documentElement.dataset.theme;
      button.textContent = `Theme: ${themes[current]}`;
      redrawAll();
    });
  }

  // ---------------------------------------------------------------- decoding

  function bytesOf(text) {
    const raw = atob(text);
    const bytes = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
    return bytes;
  }

  const floatsOf = (text) => new Float32Array(bytesOf(text).buffer);

  async function inflated(text) {
    const stream = new Blob([bytesOf(text)]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }

  // Codes of all frames, (frame, pair): 0 where there is no number, otherwise 1 … levels for low … 1.
  async function codesOf(text, levels, pairs) {
    const bytes = await inflated(text);
    let codes = bytes;
    if (levels > 255) {
      const size = bytes.length / 2;
      codes = new Uint16Array(size);
      for (let i = 0; i < size; i++) codes[i] = bytes[i] | (bytes[size + i] << 8);
    }
    // Differences of frames, in arithmetic that wraps around.
    for (let i = pairs; i < codes.length; i++) codes[i] += codes[i - pairs];
    return codes;
  }

  // ---------------------------------------------------------------- numbers

  function number(value) {
    if (!Number.isFinite(value)) return "–";
    if (value === 0) return "0";
    const size = Math.abs(value);
    const text = size >= 1e5 || size < 1e-3 ? Number(value.toPrecision(3)).toExponential() : String(Number(value.toPrecision(4)));
    return text.replace("e+", "e").replaceAll("-", "−");
  }

  function ticksOf(low, high, count) {
    const rough = (high - low) / count || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
    const found = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) found.push(k * step);
    return found;
  }

  // Powers of ten, and their multiples by 2 and 5 where those are few.
  function decadesOf(low, high) {
    const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
    const step = Math.max(1, Math.ceil((last - first - 1) / 6));
    const factors = last - first > 3 ? [1] : [1, 2, 5];
    const found = [];
    for (let k = first; k <= last; k += step) for (const factor of factors) found.push(factor * 10 ** k);
    const inside = found.filter((tick) => tick >= low * 0.999 && tick <= high * 1.001);
    return inside.length > 1 ? inside : ticksOf(low, high, 3);
  }

  function nearestIndex(times, t) {
    let best = 0;
    for (let i = 1; i < times.length; i++) if (Math.abs(times[i] - t) < Math.abs(times[best] - t)) best = i;
    return best;
  }

  // ---------------------------------------------------------------- state

  const data = JSON.parse(byId("data").textContent);
  const { runs, times, matrices, panels } = data;
  const tokens = matrices.tokens, n = tokens.length, pairs = (n * (n - 1)) / 2;
  let moment = data.start;
  let cell = null; // [row, column]
  const shown = runs.map(() => true);
  const views = [];
  const drawn = [];

  function redrawAll() {
    views.forEach((view) => view.draw());
    drawn.forEach((panel) => panel.draw());
  }

  // ---------------------------------------------------------------- tooltip

  const tooltip = byId("tooltip");
  function showTooltip(lines, x, y) {
    tooltip.replaceChildren(...lines.map((line) => make("div", {}, line)));
    tooltip.hidden = false;
    const box = tooltip.getBoundingClientRect();
    const left = Math.max(4, Math.min(x + 14, document.documentElement.clientWidth - box.width - 6));
    const top = y + 18 + box.height > window.innerHeight ? y - box.height - 10 : y + 18;
    tooltip.style.left = `${left}px`;
    tooltip.style.top = `${Math.max(4, top)}px`;
  }
  const hideTooltip = () => { tooltip.hidden = true; };

  // ---------------------------------------------------------------- matrices

  const colours = bytesOf(data.colours);
  const pairAt = (a, b) => (a < b ? a * n - (a * (a + 1)) / 2 + b - a - 1 : pairAt(b, a));
  const cosine = (code) => (code ? matrices.low + ((code - 1) / (matrices.levels - 1)) * (1 - matrices.low) : NaN);
  const decoded = new Map();

  function codesOfRun(index) {
    const entry = matrices.runs[index];
    if (!decoded.has(index)) decoded.set(index, codesOf(entry.frames, matrices.levels, pairs));
    return decoded.get(index);
  }

  function shortened(name, most) {
    // Names often differ at their ends.
    const letters = [...name], last = Math.floor((most - 1) / 2);
    return letters.length <= most ? name : `${letters.slice(0, most - 1 - last).join("")}…${letters.slice(-last).join("")}`;
  }

  class MatrixView {
    constructor(figure, label) {
      this.figure = figure;
      this.label = label;
      this.canvas = figure.querySelector("canvas");
      this.caption = figure.querySelector("figcaption");
      this.field = figure.querySelector(".matrix");
      this.image = new OffscreenCanvas(n, n);
      this.codes = null; // of the frame shown
      this.field.addEventListener("pointermove", (event) => this.point(event));
      this.field.addEventListener("pointerdown", (event) => this.point(event));
      this.field.addEventListener("pointerleave", () => { hideTooltip(); });
      this.field.addEventListener("keydown", (event) => this.key(event));
      this.field.addEventListener("focus", () => { if (!cell) setCell([0, Math.min(1, n - 1)]); });
    }

    // `codes` of one frame, or null where the run has none at this time.
    show(codes, heading, detail) {
      this.codes = codes;
      this.heading = heading;
      this.caption.replaceChildren(make("strong", {}, heading), document.createElement("br"), detail);
      if (codes) {
        const context = this.image.getContext("2d");
        const picture = context.createImageData(n, n);
        const scale = 255 / (matrices.levels - 1);
        const put = (place, code) => {
          if (!code) return;
          const colour = 3 * Math.round((code - 1) * scale);
          picture.data[4 * place] = colours[colour];
          picture.data[4 * place + 1] = colours[colour + 1];
          picture.data[4 * place + 2] = colours[colour + 2];
          picture.data[4 * place + 3] = 255;
        };
        let k = 0;
        for (let a = 0; a < n; a++) {
          put(a * n + a, matrices.levels);
          for (let b = a + 1; b < n; b++, k++) {
            put(a * n + b, codes[k]);
            put(b * n + a, codes[k]);
          }
        }
        context.putImageData(picture, 0, 0);
      }
      this.draw();
    }

    // The canvas in device pixels, with names of some tokens on the left and below.
    draw() {
      const width = this.field.clientWidth;
      if (!width) return;
      const ratio = window.devicePixelRatio || 1;
      const margin = 46, side = width - margin;
      this.margin = margin;
      this.side = side;
      if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== this.canvas.width) {
        this.canvas.width = this.canvas.height = Math.round(width * ratio);
      }
      const style = getComputedStyle(document.documentElement);
      const ink = style.getPropertyValue("--quiet"), empty = style.getPropertyValue("--line");
      const context = this.canvas.getContext("2d");
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.clearRect(0, 0, width, width);
      context.fillStyle = empty;
      context.fillRect(margin, 0, side, side);
      context.fillStyle = ink;
      context.font = "11px system-ui, sans-serif";
      if (this.codes) {
        context.imageSmoothingEnabled = false;
        context.drawImage(this.image, margin, 0, side, side);
      } else {
        context.textAlign = "center";
        context.textBaseline = "middle";
        context.fillText("no numbers at this time", margin + side / 2, side / 2);
      }
      const step = side / n, every = Math.ceil(n / Math.min(12, Math.floor(side / 14)));
      context.textBaseline = "middle";
      for (let i = 0; i < n; i += every) {
        const name = shortened(tokens[i], 8), place = Math.max(7, (i + 0.5) * step);
        context.textAlign = "right";
        context.fillText(name, margin - 5, place, margin - 6);
        context.save();
        context.translate(margin + place, side + 5);
        context.rotate(-Math.PI / 2);
        context.fillText(name, 0, 0, margin - 6);
        context.restore();
      }
      if (cell && this.codes) {
        const [row, column] = cell, x = margin + column * step, y = row * step, size = Math.max(step, 4);
        // Black within white: visible on every colour.
        for (const [color, line] of [["#000", 3], ["#fff", 1.2]]) {
          context.strokeStyle = color;
          context.lineWidth = line;
          context.strokeRect(x - (size - step) / 2, y - (size - step) / 2, size, size);
        }
      }
    }

    value(row, column) {
      if (!this.codes) return NaN;
      return row === column ? 1 : cosine(this.codes[pairAt(row, column)]);
    }

    point(event) {
      const box = this.canvas.getBoundingClientRect();
      const column = Math.floor(((event.clientX - box.left - this.margin) / this.side) * n);
      const row = Math.floor(((event.clientY - box.top) / this.side) * n);
      if (row < 0 || column < 0 || row >= n || column >= n) return hideTooltip();
      setCell([row, column]);
      showTooltip([`${tokens[row]} × ${tokens[column]}`, `${this.heading}: ${this.text(row, column)}`], event.clientX, event.clientY);
    }

    text(row, column) {
      const value = this.value(row, column);
      return Number.isFinite(value) ? value.toFixed(matrices.levels > 255 ? 4 : 3).replace("-", "−") : "–";
    }

    key(event) {
      const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
      const [row, column] = cell || [0, 0];
      let next = null;
      if (event.key in moves) next = [row + moves[event.key][0], column + moves[event.key][1]];
      else if (event.key === "Home") next = [row, 0];
      else if (event.key === "End") next = [row, n - 1];
      else if (event.key === "PageUp") next = [0, column];
      else if (event.key === "PageDown") next = [n - 1, column];
      else if (event.key === "Escape") { hideTooltip(); setCell(null); event.preventDefault(); return; }
      if (!next) return;
      event.preventDefault();
      setCell(next.map((i) => Math.max(0, Math.min(n - 1, i))));
    }
  }

  function setCell(next) {
    cell = next;
    views.forEach((view) => view.draw());
    tell();
  }

  // The pair of tokens chosen and its value in each matrix, in words.
  function tell() {
    const output = byId("pair");
    if (!cell) {
      output.textContent = "Move over a matrix, or focus it and use the arrow keys, to read a pair of tokens.";
      return;
    }
    const [row, column] = cell;
    const values = views.map((view) => `${view.label} ${view.text(row, column)}`);
    output.textContent = `${tokens[row]} × ${tokens[column]}: ${values.join(", ")}`;
  }

  // Pearson's correlation over the pairs of tokens, or 1 − MSE where the signatures' similarity is constant.
  function agreement(codes, signature) {
    let count = 0, x = 0, y = 0, xx = 0, yy = 0, xy = 0, squares = 0;
    for (let k = 0; k < pairs; k++) {
      if (!codes[k]) return "";
      const a = cosine(codes[k]), b = cosine(signature[k]);
      count++; x += a; y += b; xx += a * a; yy += b * b; xy += a * b; squares += (a - b) * (a - b);
    }
    if (matrices.constant) return `, 1 − MSE ${(1 - squares / count).toFixed(3)}`;
    const spread = Math.sqrt((xx - (x * x) / count) * (yy - (y * y) / count));
    return spread > 1e-12 ? `, Pearson ${((xy - (x * y) / count) / spread).toFixed(3).replace("-", "−")}` : "";
  }

  let asked = 0;
  async function showMatrices() {
    const turn = ++asked;
    const signature = await codesOf.signature;
    for (const view of views.slice(1)) {
      const index = Number(view.select ? view.select.value : view.entry);
      const entry = matrices.runs[index], codes = await codesOfRun(index);
      // A later move of the slider has taken over.
      if (turn !== asked) return;
      const name = runs[entry.run].name + (entry.seed === null ? "" : `, seed ${entry.seed}`);
      view.label = name;
      if (moment < entry.times.length) {
        const frame = codes.subarray(moment * pairs, (moment + 1) * pairs);
        view.show(frame, name, `t = ${number(entry.times[moment])}${agreement(frame, signature)}`);
      } else {
        const last = entry.times.length ? `, ended at t = ${number(entry.times[entry.times.length - 1])}` : "";
        view.show(null, name, `t = ${number(times[moment])}${last}`);
      }
    }
    tell();
    byId("matrices").dataset.moment = String(moment);
  }

  async function setUpMatrices() {
    const predicted = matrices.runs.map((_, i) => i).filter((i) => !runs[matrices.runs[i].run].trained);
    const trained = matrices.runs.map((_, i) => i).filter((i) => runs[matrices.runs[i].run].trained);
    const roles = [["signature", null], ["predicted", predicted], ["trained", trained]];
    for (const [role, entries] of roles) {
      const figure = byId(`matrix-${role}`);
      if (entries && !entries.length) { figure.hidden = true; continue; }
      const view = new MatrixView(figure, role);
      views.push(view);
      if (!entries) continue;
      view.entry = entries[0];
      const select = figure.querySelector("select");
      for (const index of entries) select.append(make("option", { value: index }, runs[matrices.runs[index].run].name));
      select.closest("label").hidden = entries.length < 2;
      select.addEventListener("change", showMatrices);
      view.select = select;
    }
    codesOf.signature = codesOf(matrices.signature, matrices.levels, pairs);
    views[0].show(await codesOf.signature, "order-0 signature", "from the data alone");
    drawScale();
  }

  function drawScale() {
    const canvas = byId("scale"), context = canvas.getContext("2d");
    canvas.width = 256;
    canvas.height = 1;
    const picture = context.createImageData(256, 1);
    for (let i = 0; i < 256; i++) picture.data.set([colours[3 * i], colours[3 * i + 1], colours[3 * i + 2], 255], 4 * i);
    context.putImageData(picture, 0, 0);
    byId("scale-low").textContent = number(Math.round(matrices.low * 1000) / 1000);
  }

  // ---------------------------------------------------------------- time

  const slider = byId("time"), play = byId("play");

  function setMoment(next) {
    moment = Math.max(0, Math.min(times.length - 1, next));
    slider.value = String(moment);
    const text = `t = ${number(times[moment])}`;
    slider.setAttribute("aria-valuetext", text);
    byId("time-text").textContent = `${text} (${moment + 1} of ${times.length})`;
    drawn.forEach((panel) => panel.mark());
    return showMatrices();
  }

  let playing = 0;
  function stop() {
    cancelAnimationFrame(playing);
    playing = 0;
    play.textContent = "Play";
  }

  function setUpTime() {
    slider.max = String(times.length - 1);
    slider.addEventListener("input", () => { stop(); setMoment(Number(slider.value)); });
    const still = window.matchMedia("(prefers-reduced-motion: reduce)");
    const allow = () => { play.hidden = still.matches || times.length < 2; if (still.matches) stop(); };
    still.addEventListener("change", allow);
    allow();
    play.addEventListener("click", () => {
      if (playing) return stop();
      if (moment >= times.length - 1) setMoment(0);
      play.textContent = "Pause";
      let before = performance.now();
      const frame = (now) => {
        if (now - before >= 70) {
          before = now;
          setMoment(moment + 1);
        }
        if (moment >= times.length - 1) return stop();
        playing = requestAnimationFrame(frame);
      };
      playing = requestAnimationFrame(frame);
    });
  }

  // ---------------------------------------------------------------- curves

  class Panel {
    constructor(content) {
      this.content = content;
      this.curves = content.curves.map((curve) => ({
        run: curve.run,
        t: floatsOf(curve.t),
        v: floatsOf(curve.v),
        low: curve.low ? floatsOf(curve.low) : null,
        high: curve.high ? floatsOf(curve.high) : null,
      }));
      this.figure = make("figure", { class: "panel", id: `panel-${content.key}` });
      this.field = make("div", {
        class: "plot", tabindex: "0", role: "application",
        "aria-label": `${content.quantity} over time. Left and right arrow keys move the time.`,
        "aria-describedby": `read-${content.key}`,
      });
      // Read out while this panel has the focus: not all panels at every move of the slider.
      this.output = make("output", { id: `read-${content.key}`, "aria-live": "off" });
      this.figure.append(make("figcaption", {}, content.quantity), this.field, this.output);
      byId("panels").append(this.figure);
      this.field.addEventListener("focus", () => this.output.setAttribute("aria-live", "polite"));
      this.field.addEventListener("blur", () => this.output.setAttribute("aria-live", "off"));
      this.field.addEventListener("pointermove", (event) => this.point(event, false));
      this.field.addEventListener("pointerdown", (event) => this.point(event, true));
      this.field.addEventListener("pointerleave", () => { hideTooltip(); this.hover(null); });
      this.field.addEventListener("keydown", (event) => this.key(event));
    }

    // The extent of the visible curves: trained ones where there are any, since a flow that blows up has no bound.
    extent() {
      const all = this.curves.filter((curve) => shown[curve.run]);
      const trained = all.filter((curve) => runs[curve.run].trained);
      const log = this.content.log;
      let low = Infinity, high = -Infinity;
      for (const curve of trained.length ? trained : all) {
        for (const series of [curve.v, curve.low, curve.high]) {
          if (!series) continue;
          for (const value of series) {
            if (!Number.isFinite(value) || (log && value <= 0)) continue;
            low = Math.min(low, value);
            high = Math.max(high, value);
          }
        }
      }
      if (low > high) [low, high] = log ? [0.1, 1] : [0, 1];
      if (log) {
        // Errors beyond 10 say no more than that.
        if (!trained.length) high = Math.min(high, Math.max(10, low * 10));
        return [low / 1.3, high * 1.3];
      }
      const room = 0.06 * (high - low || Math.abs(high) || 1);
      return [low - room, high + room];
    }

    draw() {
      if (this.figure.hidden) return;
      const width = this.field.clientWidth;
      if (!width) return;
      const height = 230, left = 62, right = 12, top = 8, bottom = 40;
      const [low, high] = this.extent();
      const log = this.content.log;
      const first = times[0], last = times[times.length - 1] > first ? times[times.length - 1] : first + 1;
      this.x = (t) => left + ((t - first) / (last - first)) * (width - left - right);
      this.back = (x) => first + ((x - left) / (width - left - right)) * (last - first);
      const part = log ? (v) => Math.log(v / low) / Math.log(high / low) : (v) => (v - low) / (high - low);
      this.y = (v) => top + (1 - part(v)) * (height - top - bottom);
      const svg = make("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" }, null, SVG);
      const add = (parent, tag, attributes, text = null) => {
        const element = make(tag, attributes, text, SVG);
        parent.append(element);
        return element;
      };
      const clip = `clip-${this.content.key}`;
      add(add(svg, "clipPath", { id: clip }), "rect", { x: left, y: top - 2, width: width - left - right + 2, height: height - top - bottom + 4 });
      for (const tick of log ? decadesOf(low, high) : ticksOf(low, high, 5)) {
        const y = this.y(tick);
        add(svg, "line", { class: "grid", x1: left, x2: width - right, y1: y, y2: y });
        add(svg, "text", { class: "tick", x: left - 7, y: y + 4, "text-anchor": "end" }, number(tick));
      }
      for (const tick of ticksOf(first, last, Math.max(2, Math.floor(width / 110)))) {
        add(svg, "text", { class: "tick", x: this.x(tick), y: height - bottom + 18, "text-anchor": "middle" }, number(tick));
      }
      add(svg, "line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom });
      add(svg, "text", { class: "tick", x: width - right, y: height - 5, "text-anchor": "end" }, "t = learning rate × step");
      const lines = add(svg, "g", { "clip-path": `url(#${clip})` });
      for (const curve of this.curves) {
        if (!shown[curve.run]) continue;
        const run = runs[curve.run], wide = run.width;
        const group = add(lines, "g", { "data-run": run.name, class: run.trained ? "trained" : "predicted" });
        if (curve.low) add(group, "path", { class: "band", d: this.area(curve), fill: run.color });
        const path = add(group, "path", { d: this.path(curve.t, curve.v), fill: "none", stroke: run.color, "stroke-width": wide });
        if (run.dash.length) path.setAttribute("stroke-dasharray", run.dash.map((d) => d * wide).join(" "));
      }
      this.line = add(svg, "line", { class: "moment", y1: top, y2: height - bottom });
      this.hovered = add(svg, "line", { class: "hover", y1: top, y2: height - bottom, visibility: "hidden" });
      this.field.replaceChildren(svg);
      this.mark();
    }

    path(ts, vs) {
      let text = "", pen = false;
      for (let i = 0; i < ts.length; i++) {
        const y = this.y(vs[i]);
        if (!Number.isFinite(y)) { pen = false; continue; }
        // Far outside the picture all is the same.
        text += `${pen ? "L" : "M"}${this.x(ts[i]).toFixed(1)} ${Math.max(-1e4, Math.min(1e4, y)).toFixed(1)}`;
        pen = true;
      }
      return text;
    }

    area(curve) {
      const there = [...curve.t.keys()].filter((i) => Number.isFinite(this.y(curve.low[i])) && Number.isFinite(this.y(curve.high[i])));
      const at = (i, values) => `${this.x(curve.t[i]).toFixed(1)} ${this.y(values[i]).toFixed(1)}`;
      if (!there.length) return "";
      return `M${there.map((i) => at(i, curve.high)).join("L")}L${there.reverse().map((i) => at(i, curve.low)).join("L")}Z`;
    }

    values(t) {
      const slack = 1e-6 * Math.abs(times[times.length - 1]);
      return this.curves.filter((curve) => shown[curve.run]).map((curve) => {
        const i = nearestIndex(curve.t, t);
        const there = t <= curve.t[curve.t.length - 1] + slack;
        return `${runs[curve.run].name} ${there ? number(curve.v[i]) : "– (ended)"}`;
      });
    }

    mark() {
      if (!this.line) return;
      const x = this.x(times[moment]);
      this.line.setAttribute("x1", x);
      this.line.setAttribute("x2", x);
      this.output.textContent = `t = ${number(times[moment])}: ${this.values(times[moment]).join(", ") || "no curve is shown"}`;
    }

    hover(t) {
      if (!this.hovered) return;
      this.hovered.setAttribute("visibility", t === null ? "hidden" : "visible");
      if (t === null) return;
      this.hovered.setAttribute("x1", this.x(t));
      this.hovered.setAttribute("x2", this.x(t));
    }

    point(event, choose) {
      const box = this.field.getBoundingClientRect();
      const i = nearestIndex(times, this.back(event.clientX - box.left));
      this.hover(times[i]);
      showTooltip([`t = ${number(times[i])}`, ...this.values(times[i])], event.clientX, event.clientY);
      if (choose || event.buttons === 1) { stop(); setMoment(i); }
    }

    key(event) {
      const far = Math.max(1, Math.round(times.length / 10));
      const moves = {
        ArrowLeft: moment - 1, ArrowRight: moment + 1, PageUp: moment + far, PageDown: moment - far,
        Home: 0, End: times.length - 1,
      };
      if (!(event.key in moves)) return;
      event.preventDefault();
      stop();
      setMoment(moves[event.key]);
    }
  }

  function setUpCurves() {
    for (const content of panels) drawn.push(new Panel(content));
    const switches = (id, entries, change) => {
      for (const [i, entry] of entries.entries()) {
        const label = make("label"), box = make("input", { type: "checkbox" });
        box.checked = true;
        box.addEventListener("change", () => change(i, box.checked));
        label.append(box);
        if (entry.color) {
          const swatch = make("svg", { width: 26, height: 8, "aria-hidden": "true" }, null, SVG);
          const wide = entry.width;
          const line = make("line", { x1: 0, x2: 26, y1: 4, y2: 4, stroke: entry.color, "stroke-width": wide }, null, SVG);
          if (entry.dash.length) line.setAttribute("stroke-dasharray", entry.dash.map((d) => d * wide).join(" "));
          swatch.append(line);
          label.append(swatch);
        }
        label.append(entry.text);
        byId(id).append(label);
      }
    };
    const named = runs.map((run) => ({ ...run, text: run.trained ? `${run.name} (trained)` : run.name }));
    switches("switch-runs", named, (i, on) => { shown[i] = on; drawn.forEach((panel) => panel.draw()); });
    switches("switch-panels", panels.map((panel) => ({ text: panel.title })), (i, on) => {
      drawn[i].figure.hidden = !on;
      drawn[i].draw();
    });
  }

  // ---------------------------------------------------------------- start

  async function start() {
    setUpTheme();
    if (typeof DecompressionStream === "undefined" || typeof OffscreenCanvas === "undefined") {
      byId("too-old").hidden = false;
      return;
    }
    document.querySelectorAll("[data-needs-script]").forEach((element) => { element.hidden = false; });
    setUpCurves();
    setUpTime();
    await setUpMatrices();
    drawn.forEach((panel) => panel.draw());
    await setMoment(moment);
    let width = byId("interactive").clientWidth;
    new ResizeObserver(() => {
      const now = byId("interactive").clientWidth;
      if (now !== width) redrawAll();
      width = now;
    }).observe(byId("interactive"));
    document.documentElement.dataset.opened = performance.now().toFixed(0);
    document.documentElement.dataset.ready = "yes";
  }

  start().catch((error) => {
    document.querySelectorAll("[data-needs-script]").forEach((element) => { element.hidden = true; });
    byId("too-old").hidden = false;
    throw error;
  });
})();
