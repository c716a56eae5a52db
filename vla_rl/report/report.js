// Videos run while they are seen, unless somebody pauses them or has asked for less motion. Those of a pair run together,
// and a line in the curves of an episode moves with its video.
const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
const seen = new IntersectionObserver(entries => {
  for (const { target, isIntersecting } of entries) {
    target.dataset.seen = isIntersecting ? "1" : "";
    if (!isIntersecting) target.pause();
    else if (!still && !target.dataset.held) target.play().catch(() => {});
  }
}, { threshold: 0.4 });

for (const video of document.querySelectorAll("video")) {
  const pair = video.closest(".pair"), moving = video.closest(".moving");
  const others = pair ? [...pair.querySelectorAll("video")].filter(other => other !== video) : [];
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
  const chart = moving && moving.querySelector("svg"), cursors = chart ? chart.querySelectorAll(".cursor") : [];
  const place = () => {
    for (const cursor of cursors) {
      const x = +cursor.dataset.from + (cursor.dataset.to - cursor.dataset.from) * video.currentTime / (video.duration || 1);
      cursor.setAttribute("x1", x);
      cursor.setAttribute("x2", x);
    }
    if (!video.paused) requestAnimationFrame(place);
  };
  if (cursors.length) {
    for (const name of ["play", "seeked", "timeupdate"]) video.addEventListener(name, place);
    chart.addEventListener("click", event => {
      const { from, to } = cursors[0].dataset, point = new DOMPoint(event.clientX, event.clientY);
      const share = (point.matrixTransform(chart.getScreenCTM().inverse()).x - from) / (to - from);
      video.currentTime = Math.min(Math.max(share, 0), 1) * video.duration;
    });
  }
  seen.observe(video);
}
