// What can be done to an endpoint, as buttons.
import { useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { type Attempt, api, messageOf, unwrap } from "../api/client";
import { Badge, Button, Dialog, Facts } from "../components/ui";
import { useToast } from "../components/ui";
import { number } from "../lib/format";
import { t } from "../strings";

export type Action = "pause" | "resume" | "enable" | "disable" | "test";

export function useEndpointAction(id: string) {
  const client = useQueryClient();
  const toast = useToast();
  const [busy, setBusy] = useState<Action>();
  const [tested, setTested] = useState<Attempt>();
  const act = async (action: Action) => {
    const params = { params: { path: { id } } };
    setBusy(action);
    try {
      if (action === "test") setTested(await unwrap(api.POST("/v1/endpoints/{id}/test", params)));
      if (action === "pause") await unwrap(api.POST("/v1/endpoints/{id}/pause", params));
      if (action === "resume") await unwrap(api.POST("/v1/endpoints/{id}/resume", params));
      if (action === "enable") await unwrap(api.POST("/v1/endpoints/{id}/enable", params));
      if (action === "disable") await unwrap(api.POST("/v1/endpoints/{id}/disable", params));
    } catch (error) {
      toast(messageOf(error) || t.common.offline, "bad");
    }
    setBusy(undefined);
    for (const key of ["endpoint", "endpoints", "live"]) void client.invalidateQueries({ queryKey: [key] });
  };
  return { act, busy, tested, clear: () => setTested(undefined) };
}

export function EndpointAction({ id, action }: { id: string; action: Action }) {
  const { act, busy, tested, clear } = useEndpointAction(id);
  return (
    <>
      <Button small busy={busy !== undefined} onClick={() => act(action)}>
        {busy === "test" ? t.endpoint.testing : t.endpoint[action]}
      </Button>
      {tested && <TestResult attempt={tested} onClose={clear} />}
    </>
  );
}

export function TestResult({ attempt, onClose }: { attempt: Attempt; onClose: () => void }) {
  const ok = attempt.outcome === "success";
  return (
    <Dialog title={t.endpoint.tested} onClose={onClose}>
      <Facts
        items={[
          [t.status.label ?? "", <Badge key="o" tone={ok ? "ok" : "bad"}>{`${t.outcome[attempt.outcome] ?? attempt.outcome}${attempt.status_code ? ` · ${attempt.status_code}` : ""}`}</Badge>],
          [t.overview.responseTimes, <span key="t" className="num">{t.overview.ms(number(attempt.response_time_ms))}</span>],
        ]}
      />
      {attempt.error && <p className="mt-3 text-sm break-words text-bad">{attempt.error}</p>}
      {attempt.response_preview && (
        <pre tabIndex={0} aria-label={t.delivery.answerBody} className="mt-3 max-h-60 overflow-auto rounded-md border border-line bg-bg p-3 break-all whitespace-pre-wrap">
          {attempt.response_preview}
        </pre>
      )}
    </Dialog>
  );
}
