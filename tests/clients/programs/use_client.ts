// Uses the types of the generated TypeScript client, as a program of a user would. It is compiled with `tsc --strict`;
// lines marked with @ts-expect-error must not compile.
import createClient from "openapi-fetch";
import type { components, paths } from "./schema";

type Problem = components["schemas"]["Problem"];
type ServerSentEvent = components["schemas"]["ServerSentEvent"];

class ApiError extends Error {
  constructor(readonly problem: Problem) {
    super(`${problem.status} ${problem.code}: ${problem.detail ?? ""}`);
  }
}

const client = createClient<paths>({ baseUrl: "http://localhost:8321", headers: { Authorization: "Bearer …" } });

export async function runSchedule(): Promise<string> {
  const created = await client.POST("/api/v1/schedules", {
    body: {
      name: "nightly",
      trigger: { kind: "cron", cron: "0 2 * * *", zone: "Europe/London" },
      steps: [
        { job: "hr_import", input: { full: true }, timeout: "30m" },
        [{ job: "ad_export" }, { kind: "http.call", arguments: { url: "https://example.org/hook" } }],
      ],
      overlap: "skip",
    },
  });
  if (created.error) throw new ApiError(created.error);
  const version: number = created.data.version;
  const started = await client.POST("/api/v1/schedules/{name}/run", {
    params: { path: { name: created.data.name } },
    body: { arguments: { hr_import: { full: false } } },
  });
  if (started.error) throw new ApiError(started.error);
  const executionId: string | null = started.data.execution_id;
  return `${version} ${started.data.decision === "fired" ? executionId : "queued"}`;
}

export async function readPages(): Promise<string[]> {
  const names: string[] = [];
  let after: string | undefined;
  for (;;) {
    const page = await client.GET("/api/v1/activities", { params: { query: { state: "failed", limit: 100, after } } });
    if (page.error) throw new ApiError(page.error);
    names.push(...page.data.items.map((activity) => activity.name));
    if (page.data.next === null) return names;
    after = page.data.next;
  }
}

export async function followTask(id: string): Promise<unknown> {
  const { data, error } = await client.GET("/api/v1/tasks/{id}", { params: { path: { id } } });
  if (error) throw new ApiError(error);
  return data.is_ended && data.state === "completed" ? data.output : undefined;
}

export async function retryDeadLetter(id: string): Promise<string> {
  const { data, error } = await client.POST("/api/v1/dead-letters/{id}/retry", {
    params: { path: { id } },
    body: { note: "again" },
  });
  if (error) {
    if (error.code === "dead_letter.already_resolved") return "";
    throw new ApiError(error);
  }
  return data.task_id;
}

export function describeEvent(event: ServerSentEvent): string {
  switch (event.event) {
    case "executions":
      return `${event.data.schedule_name} ${event.data.state}`;
    case "dead_letters":
      return event.data.external_id;
    default:
      return event.event;
  }
}

export function misuse(): void {
  // @ts-expect-error a schedule has steps
  void client.POST("/api/v1/schedules", { body: { name: "without steps" } });
  // @ts-expect-error there is no such state
  void client.GET("/api/v1/activities", { params: { query: { state: "Failed" } } });
  // @ts-expect-error the parameter is called state
  void client.GET("/api/v1/activities", { params: { query: { status: "failed" } } });
}
