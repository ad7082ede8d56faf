//! Which host names mean the same to everybody.

/// Names below these are answered by one's own machine or network, or by nobody: the registry of special-use names, and what
/// people use in its stead.
const SPECIAL_USE: [&str; 14] = [
    "arpa",
    "corp",
    "example",
    "home",
    "internal",
    "intranet",
    "invalid",
    "lan",
    "local",
    "localdomain",
    "localhost",
    "onion",
    "svc",
    "test",
];

const NAME_BYTES_MAX: usize = 253;
const LABEL_BYTES_MAX: usize = 63;

/// Which rule a name breaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NameRule {
    #[error("a host has at least two parts, such as example.com: a single word means something in one network only")]
    SingleLabel,
    #[error("the host contains a character that cannot be seen")]
    Invisible,
    #[error("names under .{0} mean something in one network only, so deliveries do not go there")]
    SpecialUse(&'static str),
    #[error("this is the server's own address: deliveries do not go back to it")]
    OurOwn,
    #[error("each part of a host has 1 to 63 letters, digits and inner hyphens, and the whole at most 253")]
    Label,
}

/// Of a name in ASCII and lower case, without a dot at its end.
pub(super) fn check(name: &str) -> Result<(), NameRule> {
    let is_label = |label: &str| {
        (1..=LABEL_BYTES_MAX).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if name.len() > NAME_BYTES_MAX || !name.split('.').all(is_label) {
        return Err(NameRule::Label);
    }
    let Some((_, last)) = name.rsplit_once('.') else { return Err(NameRule::SingleLabel) };
    match SPECIAL_USE.iter().find(|special| **special == last) {
        Some(special) => Err(NameRule::SpecialUse(special)),
        None => Ok(()),
    }
}

/// Unicode's default-ignorable characters. What the name means leaves them out, so nobody would see that they were there.
pub(super) fn is_invisible(character: char) -> bool {
    matches!(character,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}'
        | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fff8}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
        | '\u{e0000}'..='\u{e0fff}')
}
