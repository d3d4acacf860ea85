// SPDX-License-Identifier: MIT OR Apache-2.0
//! The paths that code names, and the names that `use` brings into it.

use std::collections::BTreeSet;

use proc_macro2::{TokenStream, TokenTree};
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{Attribute, Ident, ImplItem, Item, ItemUse, Meta, Token, TraitItem, UseTree};

/// A path by its segments.
pub(super) type Segments = Vec<String>;

/// What the code of one module names, tests left out.
#[derive(Default)]
pub(super) struct Names {
    /// Paths of two segments and more. One segment is defined in the module or imported by `use`.
    pub(super) paths: Vec<Segments>,
    /// Each name that a `use` brings, with the path it stands for. The name of a glob is `*`.
    pub(super) uses: Vec<(String, Segments)>,
}

impl Names {
    fn add_use(&mut self, tree: &UseTree, mut path: Segments) {
        match tree {
            UseTree::Path(part) => {
                path.push(part.ident.to_string());
                self.add_use(&part.tree, path);
            }
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.add_use(tree, path.clone())),
            UseTree::Name(name) => {
                // In a group, `self` is the module that the group is of.
                if name.ident != "self" {
                    path.push(name.ident.to_string());
                }
                if let Some(last) = path.last() {
                    self.uses.push((last.clone(), path));
                }
            }
            UseTree::Rename(renamed) => {
                if renamed.ident != "self" {
                    path.push(renamed.ident.to_string());
                }
                self.uses.push((renamed.rename.to_string(), path));
            }
            UseTree::Glob(_) => self.uses.push(("*".to_owned(), path)),
        }
    }

    /// The paths in what a macro is given, which is no syntax tree.
    fn add_tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            match &tokens[at] {
                TokenTree::Group(group) => self.add_tokens(group.stream()),
                TokenTree::Ident(ident) => {
                    let mut path = vec![ident.to_string()];
                    while let [TokenTree::Punct(a), TokenTree::Punct(b), TokenTree::Ident(next), ..] =
                        &tokens[at + 1..]
                        && (a.as_char(), b.as_char()) == (':', ':')
                    {
                        path.push(next.to_string());
                        at += 3;
                    }
                    self.add_path(path);
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
            at += 1;
        }
    }

    fn add_path(&mut self, path: Segments) {
        if path.len() > 1 {
            self.paths.push(path);
        }
    }
}

impl<'tree> Visit<'tree> for Names {
    fn visit_item(&mut self, item: &'tree Item) {
        if !is_of_tests(attributes_and_name(item).0) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item(&mut self, item: &'tree ImplItem) {
        let attributes = match item {
            ImplItem::Const(item) => &item.attrs[..],
            ImplItem::Fn(item) => &item.attrs,
            ImplItem::Type(item) => &item.attrs,
            ImplItem::Macro(item) => &item.attrs,
            _ => &[],
        };
        if !is_of_tests(attributes) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_trait_item(&mut self, item: &'tree TraitItem) {
        let attributes = match item {
            TraitItem::Const(item) => &item.attrs[..],
            TraitItem::Fn(item) => &item.attrs,
            TraitItem::Type(item) => &item.attrs,
            TraitItem::Macro(item) => &item.attrs,
            _ => &[],
        };
        if !is_of_tests(attributes) {
            visit::visit_trait_item(self, item);
        }
    }

    /// Documentation among them.
    fn visit_attribute(&mut self, _: &'tree Attribute) {}

    fn visit_item_use(&mut self, item: &'tree ItemUse) {
        // With leading colons it is a name of another crate.
        if item.leading_colon.is_none() {
            self.add_use(&item.tree, Segments::new());
        }
    }

    fn visit_path(&mut self, path: &'tree syn::Path) {
        if path.leading_colon.is_none() {
            self.add_path(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, called: &'tree syn::Macro) {
        self.add_tokens(called.tokens.clone());
        visit::visit_macro(self, called);
    }
}

/// Every word in what a macro is given; what it defines is among them.
pub(super) fn words(tokens: TokenStream, found: &mut BTreeSet<String>) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => words(group.stream(), found),
            TokenTree::Ident(word) => drop(found.insert(word.to_string())),
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}

/// An item's attributes, and the name that it defines.
pub(super) fn attributes_and_name(item: &Item) -> (&[Attribute], Option<&Ident>) {
    match item {
        Item::Const(item) => (&item.attrs, Some(&item.ident)),
        Item::Enum(item) => (&item.attrs, Some(&item.ident)),
        Item::ExternCrate(item) => (&item.attrs, None),
        Item::Fn(item) => (&item.attrs, Some(&item.sig.ident)),
        Item::ForeignMod(item) => (&item.attrs, None),
        Item::Impl(item) => (&item.attrs, None),
        Item::Macro(item) => (&item.attrs, item.ident.as_ref()),
        Item::Mod(item) => (&item.attrs, Some(&item.ident)),
        Item::Static(item) => (&item.attrs, Some(&item.ident)),
        Item::Struct(item) => (&item.attrs, Some(&item.ident)),
        Item::Trait(item) => (&item.attrs, Some(&item.ident)),
        Item::TraitAlias(item) => (&item.attrs, Some(&item.ident)),
        Item::Type(item) => (&item.attrs, Some(&item.ident)),
        Item::Union(item) => (&item.attrs, Some(&item.ident)),
        Item::Use(item) => (&item.attrs, None),
        _ => (&[], None),
    }
}

/// Whether what has these attributes is built for tests alone.
pub(super) fn is_of_tests(attributes: &[Attribute]) -> bool {
    let conditions = attributes.iter().filter(|attribute| attribute.path().is_ident("cfg"));
    conditions.into_iter().any(|cfg| cfg.parse_args().is_ok_and(|condition| needs_tests(&condition)))
}

fn needs_tests(condition: &Meta) -> bool {
    let parts = || {
        let list = condition.require_list().ok()?;
        list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated).ok()
    };
    let path = condition.path();
    if path.is_ident("all") {
        parts().is_some_and(|parts| parts.iter().any(needs_tests))
    } else if path.is_ident("any") {
        parts().is_some_and(|parts| !parts.is_empty() && parts.iter().all(needs_tests))
    } else {
        path.is_ident("test") || path.is_ident("doctest")
    }
}
