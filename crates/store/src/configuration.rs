//! What people have said: endpoints, tenants, event types, keys, and who said so.

use posthaste_core::catalogue;
use posthaste_core::endpoint::Endpoint;
use posthaste_core::event::EventType;
use posthaste_core::health::DisableReason;
use posthaste_core::id::{EndpointId, EndpointUid, KeyId, TenantId};
use posthaste_core::tenant::Tenant;
use posthaste_core::time::Timestamp;

use crate::{Partition, SessionAccess, StoredSession, document};

/// A secret on its way between the database and the signer. It is not shown.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretText(pub String);

impl std::fmt::Debug for SecretText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SecretText(…)")
    }
}

/// One of an endpoint's secrets. The one without an end is the present one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredSecret {
    pub secret: SecretText,
    /// When the overlap after its rotation ends.
    pub until: Option<Timestamp>,
}

/// An endpoint as the store keeps it.
#[derive(Clone, PartialEq, Debug)]
pub struct StoredEndpoint {
    pub endpoint: Endpoint,
    pub secrets: Vec<StoredSecret>,
    pub partition: Partition,
    /// Raised with every change: its `ETag`.
    pub version: u64,
    pub deleted_at: Option<Timestamp>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct NewEndpoint {
    pub endpoint: Endpoint,
    pub secrets: Vec<StoredSecret>,
    /// How many a tenant may have.
    pub per_tenant_max: u32,
    /// Refused unless its tenant is the one that was made at this time. `None`: a tenant that is not there is made.
    pub tenant_created_at: Option<Timestamp>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct StoredTenant {
    pub tenant: Tenant,
    /// Raised with every change of the tenant or of one of its endpoints.
    pub version: u64,
    pub created_at: Timestamp,
    /// What the user's own system wants to remember, and what notifications go where: JSON that only the API reads.
    pub extra: String,
}

/// One change of what people have said.
#[derive(Clone, PartialEq, Debug)]
pub enum Change {
    CreateEndpoint(Box<NewEndpoint>),
    /// Replaces what was said about it; `expected_version` is what the caller has read. Its secrets stay, unless others
    /// are given: a new way to sign may need them, and neither may come without the other.
    ReplaceEndpoint {
        endpoint: Box<Endpoint>,
        expected_version: Option<u64>,
        secrets: Option<Vec<StoredSecret>>,
    },
    ReplaceSecrets {
        endpoint: EndpointId,
        secrets: Vec<StoredSecret>,
    },
    /// What waits there is cancelled by its owner; history stays.
    DeleteEndpoint {
        endpoint: EndpointId,
    },
    PutTenant {
        tenant: Box<Tenant>,
        extra: String,
    },
    /// The same for one that is there, if what was said about it is still what the caller has read. Endpoints that come and go
    /// meanwhile do not matter.
    ReplaceTenant {
        tenant: Box<Tenant>,
        extra: String,
        expected: Box<(Tenant, String)>,
    },
    /// With its endpoints. Its history goes by and by.
    DeleteTenant {
        tenant: TenantId,
    },
    PutEventType(Box<catalogue::Entry>),
    /// If there is none of that name.
    CreateEventType(Box<catalogue::Entry>),
    /// If it is still what the caller has read.
    ReplaceEventType {
        entry: Box<catalogue::Entry>,
        expected: Box<catalogue::Entry>,
    },
    DeleteEventType {
        name: EventType,
    },
    CreateKey(Box<Key>),
    RevokeKey {
        key: KeyId,
        tenant: Option<TenantId>,
    },
}

/// What a change has led to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChangeResult {
    /// The configuration's number since.
    pub number: u64,
    /// Of the endpoint or tenant that was changed.
    pub version: u64,
}

/// Why a verb has done nothing. Not a failure of ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    #[error("there is no such thing")]
    NotFound,
    #[error("somebody else has changed it meanwhile")]
    Stale,
    #[error("that name is taken")]
    Taken,
    #[error("there are as many as there may be")]
    LimitReached,
    #[error("it has not ended yet")]
    StillWaiting,
    #[error("its payload is gone")]
    PayloadGone,
    #[error("the endpoint takes nothing")]
    EndpointTakesNothing,
    #[error("the endpoint does not subscribe to the type")]
    Unsubscribed,
    /// This node's lease has ended, or it never joined.
    #[error("the lease has ended")]
    LeaseEnded,
}

/// Who did it. `before` and `after` are JSON without secrets, made by whoever shows such things.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Audit {
    pub actor: String,
    pub address: Option<String>,
    pub action: String,
    pub subject: String,
    pub tenant: Option<TenantId>,
    pub before: Option<String>,
    pub after: Option<String>,
}

/// What the audit log calls it when an endpoint is disabled because it failed for too long, or asked for it.
pub const AUTO_DISABLED: &str = "endpoint.auto_disable";

impl Audit {
    /// Nobody has done it: it came of itself.
    pub(crate) fn auto_disabled(endpoint: EndpointId, tenant: &TenantId, reason: DisableReason) -> Audit {
        Audit {
            actor: "posthaste".to_owned(),
            address: None,
            action: AUTO_DISABLED.to_owned(),
            subject: endpoint.to_string(),
            tenant: Some(tenant.clone()),
            before: None,
            after: Some(document::disable_reason(reason)),
        }
    }

    /// The same about a session, whose tenant is known only once its code has been found.
    pub(crate) fn about_session(self, session: &StoredSession) -> Audit {
        let tenant = match &session.access {
            SessionAccess::Portal { tenant, .. } => Some(tenant.clone()),
            SessionAccess::Dashboard => None,
        };
        Audit { subject: session.id.to_string(), tenant, ..self }
    }

    /// By which rule an endpoint was disabled; `None` of another action, and where an earlier version has not written it.
    pub fn disable_reason(&self) -> Option<DisableReason> {
        document::read_disable_reason(self.after.as_deref().filter(|_| self.action == AUTO_DISABLED)?)
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AuditRow {
    pub seq: u64,
    pub at: Timestamp,
    pub audit: Audit,
}

#[derive(Clone, PartialEq, Default, Debug)]
pub struct EndpointQuery {
    pub tenant: Option<TenantId>,
    pub uid: Option<EndpointUid>,
    /// Only those that are disabled.
    pub is_disabled: bool,
    pub before: Option<EndpointId>,
    pub limit: usize,
}

/// SHA-256 of the key. The key itself is random enough that nothing slower is needed, and it is kept nowhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyHash(pub [u8; 32]);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum KeyScope {
    Publish,
    Read,
    Manage,
    Replay,
    Admin,
}

impl KeyScope {
    pub const ALL: [KeyScope; 5] = [KeyScope::Publish, KeyScope::Read, KeyScope::Manage, KeyScope::Replay, KeyScope::Admin];

    pub fn name(self) -> &'static str {
        match self {
            KeyScope::Publish => "publish",
            KeyScope::Read => "read",
            KeyScope::Manage => "manage",
            KeyScope::Replay => "replay",
            KeyScope::Admin => "admin",
        }
    }
}

/// What may be done with a key, and by whom.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Key {
    pub id: KeyId,
    pub hash: KeyHash,
    pub name: String,
    /// `None`: all tenants.
    pub tenant: Option<TenantId>,
    pub scopes: Vec<KeyScope>,
    pub created_at: Timestamp,
    pub expires_at: Option<Timestamp>,
    pub revoked_at: Option<Timestamp>,
    pub last_used_at: Option<Timestamp>,
}
