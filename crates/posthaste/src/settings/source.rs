//! Where settings come from, and what is said about those that make no sense.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use toml::de::{DeTable, DeValue};

use super::rule::{Kind, Rule};
use super::{Setting, table};
use crate::keys::refuse_if_loose;

const PREFIX: &str = "POSTHASTE_";
const CONFIG_VARIABLE: &str = "POSTHASTE_CONFIG";
/// For the command line as a client, not for the server.
pub(super) const VARIABLES_OF_CLIENTS: [&str; 2] = ["POSTHASTE_URL", "POSTHASTE_API_KEY"];
/// For `backup` and `restore`.
pub(super) const BACKUP_PASSPHRASE: &str = "POSTHASTE_BACKUP_PASSPHRASE";
const FILE: &str = "posthaste.toml";
/// A file of settings that is larger than this is something else.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// The flags as they were given.
#[derive(Clone, Default, Debug)]
pub(crate) struct Flags {
    config: Option<PathBuf>,
    pub(crate) print_config: bool,
    given: Vec<(&'static str, String)>,
    /// Files that have the value of a secret in them.
    files: Vec<(&'static str, PathBuf)>,
}

const FILE_FLAG: &str = "-file";
const FILE_NAME: &str = "_file";
/// Where systemd puts the credentials of a service, and how ours are called there: `posthaste.admin_key`.
const CREDENTIALS_VARIABLE: &str = "CREDENTIALS_DIRECTORY";
const CREDENTIAL_PREFIX: &str = "posthaste.";
/// Where containers find secrets, with modes that they cannot change.
const CONTAINER_SECRETS: &str = "/run/secrets";
/// A group may read a secret that somebody else has put there for us, as with Kubernetes' `fsGroup`.
const OTHERS: u32 = 0o037;

impl Args for Flags {
    fn augment_args(command: Command) -> Command {
        let config = Arg::new("config")
            .long("config")
            .value_name("FILE")
            .help("The settings file [env: POSTHASTE_CONFIG] [default: posthaste.toml, if there is one]");
        let print =
            Arg::new("print_config").long("print-config").action(ArgAction::SetTrue).help("Show what was understood, and stop");
        let command = command.arg(config).arg(print);
        table().into_iter().fold(command, |command, setting| match file_argument(&setting) {
            Some(file) => command.arg(argument(&setting)).arg(file),
            None => command.arg(argument(&setting)),
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn argument(setting: &Setting) -> Arg {
    let default = match setting.default {
        "" => String::new(),
        default => format!(" [default: {default}]"),
    };
    let help = format!("{} [env: {}]{default}", setting.purpose, setting.variable());
    let arg = Arg::new(setting.name).long(setting.flag()).value_name("VALUE").help(help).help_heading(setting.section);
    match setting.kind {
        Kind::Boolean => arg.num_args(0..=1).require_equals(true).default_missing_value("true").value_name("BOOL"),
        Kind::List => arg.action(ArgAction::Append),
        Kind::Text | Kind::Number | Kind::Secret => arg,
    }
}

/// Everybody on a machine can see the arguments of its processes: a secret can be given as a file.
fn file_argument(setting: &Setting) -> Option<Arg> {
    let help = format!("A file that has {} in it [env: {}]", setting.flag(), setting.file_variable()?);
    let flag = format!("{}{FILE_FLAG}", setting.flag());
    let arg = Arg::new(format!("{}{FILE_NAME}", setting.name)).long(flag.clone()).value_name("FILE").help(help);
    Some(arg.help_heading(setting.section))
}

impl FromArgMatches for Flags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Flags, clap::Error> {
        let mut flags = Flags::default();
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.config = matches.get_one::<String>("config").map(PathBuf::from);
        self.print_config = matches.get_flag("print_config");
        for setting in table() {
            if let Some(values) = matches.get_many::<String>(setting.name) {
                let values: Vec<&str> = values.map(String::as_str).collect();
                self.given.push((setting.name, values.join(",")));
            }
            let file = format!("{}{FILE_NAME}", setting.name);
            if let Ok(Some(path)) = matches.try_get_one::<String>(&file) {
                self.files.push((setting.name, PathBuf::from(path)));
            }
        }
        Ok(())
    }
}

/// Where a value was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    Default,
    File {
        path: PathBuf,
        line: usize,
    },
    /// Of systemd.
    Credential(String),
    Variable(String),
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File { path, line } => write!(f, "{}:{line}", path.display()),
            Origin::Credential(name) => write!(f, "credential {name}"),
            Origin::Variable(name) => f.write_str(name),
            Origin::Flag(flag) => write!(f, "--{flag}"),
        }
    }
}

/// One line each.
#[derive(Default, Debug)]
pub(crate) struct Mistakes {
    lines: Vec<String>,
    /// Settings whose value could not be read.
    unread: BTreeSet<&'static str>,
}

impl Mistakes {
    pub(crate) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(String::as_str)
    }

    /// Whether what somebody has set there could not be read, so that its default has taken its place.
    pub(crate) fn hide(&self, setting: &str) -> bool {
        self.unread.contains(setting)
    }

    fn add(&mut self, origin: impl fmt::Display, what: impl fmt::Display) {
        self.lines.push(format!("{origin}: {what}"));
    }
}

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines.join("\n"))
    }
}

impl std::error::Error for Mistakes {}

/// Settings that are wrong together. The first that was not left at its default is blamed.
#[derive(Debug)]
pub(crate) struct Together {
    names: Vec<&'static str>,
    what: String,
}

impl Together {
    pub(crate) fn of<W: fmt::Display>(names: &[&'static str]) -> impl FnOnce(W) -> Together {
        let names = names.to_vec();
        move |what| Together { names, what: what.to_string() }
    }
}

/// What was said, before it is understood.
#[derive(Default, Debug)]
pub(crate) struct RawValue {
    values: BTreeMap<&'static str, (String, Origin)>,
}

impl RawValue {
    pub(crate) fn gather(flags: &Flags, variables: impl IntoIterator<Item = (OsString, OsString)>) -> (RawValue, Mistakes) {
        let mut given = RawValue::default();
        let mut mistakes = Mistakes::default();
        let table = table();
        let variables: Vec<(OsString, OsString)> = variables.into_iter().collect();
        let credentials = variables.iter().find(|(name, _)| name == CREDENTIALS_VARIABLE).map(|(_, value)| PathBuf::from(value));
        let variables = ours(variables, &mut mistakes);
        let named = flags.config.clone().or_else(|| variables.get(CONFIG_VARIABLE).map(PathBuf::from));
        given.take_file(&table, named, &mut mistakes);
        given.take_credentials(&table, credentials.as_deref(), &mut mistakes);
        given.take_variables(&table, &variables, &mut mistakes);
        for (name, value) in &flags.given {
            given.values.insert(name, (value.clone(), Origin::Flag(name.replace('_', "-"))));
        }
        for (name, path) in &flags.files {
            let origin = Origin::Flag(format!("{}{FILE_FLAG}", name.replace('_', "-")));
            if flags.given.iter().any(|(given, _)| given == name) {
                mistakes.add(origin, "the secret is given as a flag, too; give it once");
            } else {
                given.take_secret_file(name, path, origin, &mut mistakes);
            }
        }
        (given, mistakes)
    }

    pub(crate) fn of<'a>(&'a self, setting: &'a Setting) -> (&'a str, &'a Origin) {
        self.values.get(setting.name).map_or((setting.default, &Origin::Default), |(value, origin)| (value, origin))
    }

    pub(crate) fn read<T>(&mut self, name: &'static str, rule: &Rule<T>, default: &'static str, mistakes: &mut Mistakes) -> T {
        let (text, origin) = self.values.get(name).map_or((default, &Origin::Default), |(text, origin)| (text, origin));
        match rule.read(text) {
            Ok(value) => value,
            Err(why) => {
                // What was meant to be a secret is not shown because it was mistyped.
                let shown = if rule.kind == Kind::Secret { String::new() } else { format!("`{text}` is ") };
                let why = if why.is_empty() { why } else { format!(" ({why})") };
                mistakes.add(origin, format_args!("{shown}not {}{why}", rule.allowed));
                mistakes.unread.insert(name);
                rule.read(default).unwrap_or_else(|_| panic!("the default of {name} is what its rule allows"))
            }
        }
    }

    /// Whoever sees a consequence of another mistake would look in the wrong place.
    pub(crate) fn blame(&self, together: Together, mistakes: &mut Mistakes) {
        let Together { names, what } = together;
        if names.iter().any(|name| mistakes.unread.contains(name)) {
            return;
        }
        let said = names.iter().find_map(|name| self.values.get(name).map(|(_, origin)| origin.to_string()));
        mistakes.add(said.unwrap_or_else(|| names.join(", ")), what);
    }

    /// A secret from a file, which only we can read. A line break at its end does not belong to it.
    fn take_secret_file(&mut self, name: &'static str, path: &Path, origin: Origin, mistakes: &mut Mistakes) {
        if !path.starts_with(CONTAINER_SECRETS)
            && let Err(error) = refuse_if_loose(path, OTHERS)
        {
            return mistakes.add(origin, error);
        }
        match read_file(path) {
            Ok(text) => _ = self.values.insert(name, (text.trim_end_matches(['\r', '\n']).to_owned(), origin)),
            Err(error) => mistakes.add(origin, format_args!("{} cannot be read: {error}", path.display())),
        }
    }

    /// What systemd gives a service with `LoadCredential=` or `SetCredentialEncrypted=`.
    fn take_credentials(&mut self, table: &[Setting], directory: Option<&Path>, mistakes: &mut Mistakes) {
        let Some(directory) = directory else { return };
        for setting in table.iter().filter(|setting| setting.kind == Kind::Secret) {
            let path = directory.join(format!("{CREDENTIAL_PREFIX}{}", setting.name));
            match read_file(&path) {
                Ok(text) => {
                    let origin = Origin::Credential(format!("{CREDENTIAL_PREFIX}{}", setting.name));
                    self.values.insert(setting.name, (text.trim_end_matches(['\r', '\n']).to_owned(), origin));
                }
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => mistakes.add(path.display(), format_args!("cannot be read: {error}")),
            }
        }
    }

    fn take_variables(&mut self, table: &[Setting], variables: &BTreeMap<String, String>, mistakes: &mut Mistakes) {
        for (name, value) in variables {
            match table.iter().find(|setting| setting.variable() == *name) {
                Some(_) if value.is_empty() => {}
                Some(setting) => {
                    self.values.insert(setting.name, (value.clone(), Origin::Variable(name.clone())));
                }
                None if table.iter().any(|setting| setting.file_variable().as_ref() == Some(name)) => {
                    let setting = table.iter().find(|setting| setting.file_variable().as_ref() == Some(name));
                    if let Some(setting) = setting.filter(|_| !value.is_empty()) {
                        let origin = Origin::Variable(name.clone());
                        if variables.get(&setting.variable()).is_some_and(|value| !value.is_empty()) {
                            mistakes.add(origin, format_args!("{} is set, too; set one of them", setting.variable()));
                        } else {
                            self.take_secret_file(setting.name, Path::new(value), origin, mistakes);
                        }
                    }
                }
                None if is_for_somebody_else(name, value) => {}
                None => {
                    let known = table.iter().map(Setting::variable).chain([CONFIG_VARIABLE.to_owned()]);
                    let hint = nearest(name, known).map(|hint| format!("; did you mean {hint}?")).unwrap_or_default();
                    mistakes.add(name, format_args!("there is no such setting{hint}"));
                }
            }
        }
    }

    fn take_file(&mut self, table: &[Setting], named: Option<PathBuf>, mistakes: &mut Mistakes) {
        let path = match named {
            Some(path) => path,
            None if Path::new(FILE).exists() => PathBuf::from(FILE),
            None => return,
        };
        let text = match read_file(&path) {
            Ok(text) => text,
            Err(error) => return mistakes.add("settings", format_args!("{} cannot be read: {error}", path.display())),
        };
        let line_of = |at: usize| text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1;
        let place = |at: usize| Origin::File { path: path.clone(), line: line_of(at) };
        match DeTable::parse(&text) {
            Err(error) => {
                let at = error.span().map_or(0, |span| span.start);
                mistakes.add(place(at), error.message().replace('\n', ", "));
            }
            Ok(parsed) => self.take_table(table, parsed.get_ref(), "", &place, mistakes),
        }
    }

    /// A table is a way to write the beginning of some names only once.
    fn take_table(
        &mut self,
        table: &[Setting],
        entries: &DeTable<'_>,
        beginning: &str,
        place: &dyn Fn(usize) -> Origin,
        mistakes: &mut Mistakes,
    ) {
        for (key, value) in entries {
            let origin = place(key.span().start);
            let name = format!("{beginning}{}", key.get_ref());
            if let DeValue::Table(entries) = value.get_ref() {
                self.take_table(table, entries, &format!("{name}_"), place, mistakes);
                continue;
            }
            let Some(setting) = table.iter().find(|setting| setting.name == name) else {
                let hint = nearest(&name, table.iter().map(|setting| setting.name.to_owned()));
                let hint = hint.map(|hint| format!("; did you mean `{hint}`?")).unwrap_or_default();
                mistakes.add(origin, format_args!("there is no setting `{name}`{hint}"));
                continue;
            };
            match as_text(value.get_ref()) {
                Some(text) => _ = self.values.insert(setting.name, (text, origin)),
                None => mistakes.add(origin, format_args!("`{name}` is not {}", setting.allowed)),
            }
        }
    }
}

/// Everything that begins with our name, as text.
fn ours(variables: impl IntoIterator<Item = (OsString, OsString)>, mistakes: &mut Mistakes) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for (name, value) in variables {
        let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else { continue };
        match value.into_string() {
            Ok(value) => _ = found.insert(name.to_owned(), value),
            Err(_) => mistakes.add(name, "its value is not UTF-8"),
        }
    }
    found
}

/// Kubernetes tells every process about services beside it: one that is called posthaste gives us variables that nobody
/// meant as settings.
fn is_for_somebody_else(name: &str, value: &str) -> bool {
    let is_port = |rest: &str| rest.split('_').next().is_some_and(|port| port.parse::<u16>().is_ok());
    name == CONFIG_VARIABLE
        || name == BACKUP_PASSPHRASE
        || VARIABLES_OF_CLIENTS.contains(&name)
        || name.ends_with("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || (name.ends_with("_PORT") && value.contains("://"))
        || name.split_once("_PORT_").is_some_and(|(_, rest)| is_port(rest))
}

fn read_file(path: &Path) -> std::io::Result<String> {
    if std::fs::metadata(path)?.len() > FILE_BYTES_MAX {
        return Err(std::io::Error::other("it is larger than 1 MiB"));
    }
    std::fs::read_to_string(path)
}

/// As it would be given in a variable.
fn as_text(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Some(number.as_str().to_owned()),
        DeValue::Float(number) => Some(number.as_str().to_owned()),
        DeValue::Boolean(truth) => Some(truth.to_string()),
        DeValue::Array(values) => {
            let texts = values.iter().map(|value| as_text(value.get_ref())).collect::<Option<Vec<_>>>()?;
            Some(texts.join(","))
        }
        DeValue::Integer(_) | DeValue::Datetime(_) | DeValue::Table(_) => None,
    }
}

/// What was probably meant, if anything comes near.
fn nearest(name: &str, known: impl Iterator<Item = String>) -> Option<String> {
    let scored = known.map(|candidate| (distance(name, &candidate), candidate));
    let (distance, candidate) = scored.min()?;
    (distance <= 2 + name.trim_start_matches(PREFIX).len() / 8).then_some(candidate)
}

/// How many letters have to be put in, taken out, changed or swapped with their neighbour.
fn distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    let mut rows = vec![(0..=other.len()).collect::<Vec<usize>>()];
    for at in 1..=one.len() {
        let mut row = vec![at];
        for to in 1..=other.len() {
            let is_other = usize::from(one[at - 1] != other[to - 1]);
            let mut best = (rows[at - 1][to] + 1).min(row[to - 1] + 1).min(rows[at - 1][to - 1] + is_other);
            if at > 1 && to > 1 && one[at - 1] == other[to - 2] && one[at - 2] == other[to - 1] {
                best = best.min(rows[at - 2][to - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[one.len()][other.len()]
}

#[cfg(test)]
pub(crate) fn test_flags(arguments: &[&str]) -> Flags {
    let command = Flags::augment_args(Command::new("test").no_binary_name(true));
    Flags::from_arg_matches(&command.get_matches_from(arguments)).unwrap()
}

#[cfg(test)]
impl Flags {
    pub(crate) fn set_config(&mut self, path: &Path) {
        self.config = Some(path.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_finger_is_seen_through_and_a_stranger_is_not_taken_for_somebody() {
        let known = || ["listen", "data_dir", "in_flight_max"].map(str::to_owned).into_iter();
        assert_eq!(nearest("lsiten", known()).as_deref(), Some("listen"));
        assert_eq!(nearest("datadir", known()).as_deref(), Some("data_dir"));
        assert_eq!(nearest("colour", known()), None);
        assert_eq!(distance("abc", "acb"), 1);
        assert_eq!(distance("", "abc"), 3);
    }
}
