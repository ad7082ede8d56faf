import type { Session } from "../api/client";

export const mayDo = (session: Session, scope: string) => session.scopes.includes(scope);
