// Steering of a run: users of a closed loop, or the rate of an open loop.
(() => {
  window.inferloadSteer = null;
})();
