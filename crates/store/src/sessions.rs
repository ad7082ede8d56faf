//! People who are logged in: sessions of the dashboard, which stand for a key, and of the portal, which begin with a link.
//!
//! A session ends with its time, with its key, with its tenant, or when it is ended; its row is deleted then.

use posthaste_core::id::{KeyId, SessionId, TenantId};
use posthaste_core::time::Timestamp;

use crate::KeyHash;

/// Portal sessions of one tenant, and dashboard sessions of one key, that there may be at once. The oldest makes room.
pub const SESSIONS_MAX: usize = 1_000;

/// What a portal session may do.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a permission of its own")]
pub struct PortalPermissions {
    pub view: bool,
    pub manage: bool,
    pub secrets: bool,
    pub replay: bool,
}

impl PortalPermissions {
    pub(crate) fn bits(self) -> i64 {
        i64::from(self.view) | i64::from(self.manage) << 1 | i64::from(self.secrets) << 2 | i64::from(self.replay) << 3
    }

    pub(crate) fn from_bits(bits: i64) -> PortalPermissions {
        let has = |place: u8| bits >> place & 1 == 1;
        PortalPermissions { view: has(0), manage: has(1), secrets: has(2), replay: has(3) }
    }
}

/// What a session is for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SessionAccess {
    /// All that the key that made it may do.
    Dashboard,
    /// One tenant, the one of this name that was made at this time.
    Portal {
        tenant: TenantId,
        tenant_created_at: Timestamp,
        permissions: PortalPermissions,
        /// How its pages look: a document that the API writes and reads.
        appearance: Option<String>,
    },
}

/// The key that a session was made with, and that it ends with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SessionMaker {
    /// The operator's first key, by a digest that only the caller can make.
    Admin([u8; 32]),
    Key(KeyId),
}

/// A session as the store keeps it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredSession {
    pub id: SessionId,
    pub access: SessionAccess,
    pub made_by: SessionMaker,
    pub created_at: Timestamp,
    /// When its link was used; `None` for a link that has not been.
    pub started_at: Option<Timestamp>,
    pub expires_at: Timestamp,
    /// Of the key that made it, where the session was asked for by its token.
    pub key: Option<KeyHash>,
}

/// A session of the dashboard, which begins at once, or a portal link, which is exchanged for a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewSession {
    pub id: SessionId,
    /// Of its token, or of the link's code.
    pub hash: KeyHash,
    pub access: SessionAccess,
    pub made_by: SessionMaker,
    pub created_at: Timestamp,
    pub expires_at: Timestamp,
    /// By when a link has to be used; `None` for a session that begins at once.
    pub code_expires_at: Option<Timestamp>,
}

/// Portal sessions that are listed, newest first.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct SessionQuery {
    pub tenant: Option<TenantId>,
    pub made_by: Option<SessionMaker>,
    pub before: Option<SessionId>,
    pub limit: usize,
}

/// Which sessions are ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EndSessions {
    One(SessionId),
    /// One of the portal, if it is this tenant's or any tenant's.
    Portal {
        id: SessionId,
        tenant: Option<TenantId>,
    },
    /// Those of the portal for a tenant.
    OfTenant(TenantId),
    /// Those of the portal made by a key, of one tenant or of all.
    MadeBy {
        key: SessionMaker,
        tenant: Option<TenantId>,
    },
}
