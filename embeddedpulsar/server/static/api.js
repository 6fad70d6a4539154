// What the page asks of the server, and the streams that it follows. Addresses are relative.

class Failure extends Error {
  constructor(status, reason) {
    super(reason);
    this.status = status;
  }
}

export function address(name, query) {
  const rest = new URLSearchParams(Object.entries(query ?? {}).filter(([, value]) => value !== "" && value !== null && value !== undefined));
  return `api/${name}${rest.size ? `?${rest}` : ""}`;
}

async function answer(response) {
  const type = response.headers.get("content-type") ?? "";
  const value = type.startsWith("application/json") ? await response.json() : { reason: await response.text() };
  if (!response.ok) throw new Failure(response.status, value.reason || `the server answered ${response.status}`);
  return value;
}

export async function get(name, query, signal) {
  return answer(await fetch(address(name, query), { signal, headers: { accept: "application/json" } }));
}

export async function plan(given, signal) {
  return get("plan", { given: JSON.stringify(given) }, signal);
}

export async function act(given) {
  return answer(
    await fetch(address("actions"), {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(given),
    }),
  );
}

/**
 * Follow a view. `onState` is called with `live`, `lost` and `ended`; a browser that lost the server asks again by
 * itself. A page in the background follows nothing.
 */
export function follow(query, onValue, onState, onFailure) {
  let source = null;
  const open = () => {
    source = new EventSource(address("events", query));
    source.onopen = () => onState("live");
    source.onmessage = (event) => onValue(JSON.parse(event.data));
    source.addEventListener("failure", (event) => {
      close();
      onState("ended");
      onFailure(new Failure(0, JSON.parse(event.data).reason));
    });
    source.onerror = () => {
      onState("lost");
      // After a refusal the browser does not ask again: the reason is in the answer.
      if (source && source.readyState === EventSource.CLOSED) {
        close();
        explain();
      }
    };
  };
  const explain = async () => {
    const controller = new AbortController();
    try {
      const response = await fetch(address("events", query), { signal: controller.signal });
      if (response.ok) controller.abort(); // it is there again
      else await answer(response);
      if (!document.hidden) open();
    } catch (error) {
      if (error.status) onState("ended"); // a refusal, and no server that is lost
      onFailure(error);
    }
  };
  const close = () => {
    if (source) source.close();
    source = null;
  };
  const onVisibility = () => {
    if (document.hidden) {
      close();
      onState("paused");
    } else if (!source) open();
  };
  document.addEventListener("visibilitychange", onVisibility);
  if (!document.hidden) open();
  return () => {
    document.removeEventListener("visibilitychange", onVisibility);
    close();
    onState("ended");
  };
}
